"""Code of handlers that blocks the event loop, or is slow, named while it runs."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from credhook import Handlers
from credhook.worker.attempt import running
from credhook.worker.handlers.blocking import BLOCKED_SECONDS, SLOW_SECONDS, WAITS_SECONDS, SlowCode

EVENT: Any = SimpleNamespace(webhook_id="m1", type="t", resource_id="r", attempt=1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_code_that_blocks_the_loop_is_named_once() -> None:
    clock = Clock()
    slow = SlowCode(list, clock)

    def blocks() -> None:
        looking = threading.Thread(target=slow.look)
        looking.start()
        looking.join()

    with capture_logs() as logs:
        for moment in (BLOCKED_SECONDS, BLOCKED_SECONDS + 0.1, BLOCKED_SECONDS + 0.2):
            clock.now = moment
            blocks()
    (line,) = logs
    assert (line["event"], line["at"][0].split()[-1]) == ("handler_blocks", "blocks")
    slow.tick()
    with capture_logs() as logs:
        blocks()
    assert logs == []


def test_awaited_handler_is_named_every_ten_seconds() -> None:
    clock = Clock()
    turns = {"a.limited": (3, 27.5)}
    slow = SlowCode(list, clock, lambda: turns)
    with capture_logs() as logs:
        for clock.now in (0.0, 0.5, 9.5, WAITS_SECONDS, 15.0):
            slow.tick()
            slow.look()
    fields = {"handler": "a.limited", "events": 3, "seconds": 27.5, "log_level": "info"}
    assert logs == [{"event": "turns_awaited", **fields}] * 2


async def test_slow_handler_is_named_once_with_its_line() -> None:
    clock, enough, handlers = Clock(), asyncio.Event(), Handlers("a")
    clock.now = began = 100.0

    @handlers.on("*")
    async def waits(event: Any, context: Any) -> None:
        await enough.wait()

    runs = running.Runs(1, clock)
    slow = SlowCode(lambda: [*runs.alive.values()], clock)
    (handler,) = handlers
    context: Any = None
    run = asyncio.create_task(running.run(handler, EVENT, context, timeout=60, runs=runs))
    await asyncio.sleep(0.01)
    with capture_logs() as logs:
        for seconds in (SLOW_SECONDS, SLOW_SECONDS + 1, SLOW_SECONDS + 2):
            clock.now = began + seconds
            slow.look()
    enough.set()
    assert await run is None
    (line,) = [entry for entry in logs if entry["event"] == "handler_slow"]
    assert (line["handler"], line["webhook_id"], line["seconds"]) == ("a.waits", "m1", SLOW_SECONDS + 1)
    assert line["at"][0].endswith(" waits")
