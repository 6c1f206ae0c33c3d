"""Start-up and shutdown functions of plugins."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from credhook import Handlers
from credhook.worker.wiring import Lifespan
from support.waiting import until_async


def plugin(name: str, startup: Any = None, shutdown: Any = None) -> Handlers[Any]:
    made: Handlers[Any] = Handlers(name)
    if startup is not None:
        made.startup(startup)
    if shutdown is not None:
        made.shutdown(shutdown)
    return made


async def test_each_plugin_has_what_its_own_start_up_returned() -> None:
    threads = []

    async def connects() -> str:
        return "a connection"

    def opens() -> int:
        threads.append(threading.get_ident())
        return 7

    async def lacks_an_await() -> Any:
        return connects()

    def hides() -> Any:
        return connects()

    pool = asyncio.get_running_loop().create_future()
    pool.set_result("what nobody asked for")

    async def pools() -> Any:
        return pool  # Some pools can be awaited.

    plugins = {"first": connects, "second": opens, "third": None, "fourth": lacks_an_await, "fifth": hides}
    plugins |= {"sixth": pools, "seventh": dict}
    span = Lifespan([plugin(name, startup) for name, startup in plugins.items()])
    await span.start()
    connected = dict.fromkeys(("first", "fourth", "fifth"), "a connection")
    assert span.states == connected | {"second": 7, "sixth": pool, "seventh": {}}
    assert threads != [threading.get_ident()]


@pytest.mark.parametrize("decorator", [lambda function: function, asynccontextmanager])
async def test_lifespan_is_entered_and_left_in_one_task(decorator: Any) -> None:
    notes: list[Any] = []

    @decorator  # type: ignore[untyped-decorator]
    async def pool() -> Any:
        async with asyncio.timeout(60):  # Like a task group, it has to be left in the task that has entered it.
            notes.append(asyncio.current_task())
            yield "a pool"
            notes.append(asyncio.current_task())

    made: Handlers[Any] = Handlers("a")
    assert made.lifespan(pool) is pool
    span = Lifespan([made])
    await span.start()
    assert (span.states, len(notes), span.has_started) == ({"a": "a pool"}, 1, True)
    await span.stop()
    first, last = notes
    assert first is last


async def test_failed_lifespan_is_tried_again_and_its_end_logged() -> None:
    errors = [OSError(), RuntimeError()]

    async def pool() -> Any:
        if len(errors) == 2:
            raise errors.pop(0)
        yield "a pool"
        raise errors.pop()

    made: Handlers[Any] = Handlers("a")
    made.lifespan(pool)
    span = Lifespan([made], sleep=AsyncMock())
    with capture_logs() as lines:
        await span.start()
        assert span.states == {"a": "a pool"}
        await span.stop()
    assert [line["event"] for line in lines] == ["startup_failed", "plugins_started", "shutdown_failed"]
    assert errors == []


async def test_plugins_share_what_one_function_makes() -> None:
    made, notes = [Handlers[Any](name) for name in "abc"], list[str]()

    async def pool() -> Any:
        notes.append("entered")
        yield object()
        notes.append("left")

    def connects() -> object:
        notes.append("connected")
        return object()

    for one in made[:2]:
        one.lifespan(pool)

    def disconnects(_: object) -> None:
        notes.append("closed")

    shared = [plugin(name, connects, disconnects) for name in "de"]
    span = Lifespan([*made, *shared])
    await span.start()
    assert span.states["a"] is span.states["b"]
    assert span.states["d"] is span.states["e"]
    await span.stop()
    assert sorted(notes) == ["closed", "connected", "entered", "left"]
    assert span.states == {}


async def life_with(lifespan: Any) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]:
    """Start and stop a plugin with this lifespan. Return the log lines, and the only one about an error."""
    made = Handlers[Any]("x")
    made.lifespan(lifespan)
    span = Lifespan([made], sleep=lambda _: asyncio.sleep(0))
    with capture_logs() as lines:
        await span.start()
        await span.stop()
    (failed,) = [line for line in lines if "exc_info" in line]
    return lines, failed


@pytest.mark.parametrize(("yields", "ends", "message"), [
    (0, ("startup_failed", "plugins_started"), r"pool at \S+test_lifespan\.py:\d+ yields nothing: write one yield"),
    (2, ("plugins_started", "shutdown_failed"), r"pool at \S+test_lifespan\.py:\d+ yields a second time: write one"),
])  # fmt: skip
async def test_lifespan_yields_once(yields: int, ends: tuple[str, str], message: str) -> None:
    numbers = iter([yields])

    async def pool() -> AsyncIterator[int]:
        for number in range(next(numbers, 1)):
            yield number

    lines, failed = await life_with(pool)
    assert tuple(line["event"] for line in lines) == ends
    assert re.match(message, str(failed["exc_info"]))
    assert failed["exc_info"].__traceback__ is None  # It would name our lines in place of the author's.
    assert re.search(r"test_lifespan\.py:\d+$", failed["at"][0])


async def test_manager_inside_a_lifespan_is_to_blame_for_its_own_yields() -> None:
    numbers = iter([0])

    @asynccontextmanager
    async def inner() -> AsyncIterator[int]:
        for number in range(next(numbers, 1)):
            yield number

    async def pool() -> AsyncIterator[int]:
        async with inner() as number:
            yield number

    _, failed = await life_with(pool)
    assert (type(failed["exc_info"]), str(failed["exc_info"])) == (RuntimeError, "generator didn't yield")


async def test_late_lifespan_is_left_when_the_worker_stops_before_it_began() -> None:
    began = asyncio.Event()

    async def pool() -> Any:
        began.set()
        await asyncio.Event().wait()
        yield "never"

    made, quick = Handlers[Any]("a"), plugin("b", dict)
    made.lifespan(pool)
    span = Lifespan([made, quick], patience_seconds=0.01)
    before = asyncio.all_tasks()
    with capture_logs():
        await span.start()
        await began.wait()
        await span.stop()
    await until_async(lambda: asyncio.all_tasks() == before, what="the end of its tasks")
    assert span.states == {"b": {}}


async def test_failed_start_up_is_retried_with_growing_pauses() -> None:
    sleep = AsyncMock()
    errors: dict[str, list[BaseException]] = {
        "a": [ConnectionError("Jane Doe"), SystemExit("Jane Doe"), OSError()],
        "b": [OSError()],
    }

    def connects(name: str) -> str:
        if errors[name]:
            raise errors[name].pop(0)
        return "at last"

    span = Lifespan([plugin(name, partial(connects, name)) for name in errors], sleep=sleep)
    with capture_logs() as lines:
        await span.start()
    assert sorted(call.args for call in sleep.await_args_list) == [(1,), (1,), (2,), (4,)]
    assert span.states == {"a": "at last", "b": "at last"}
    last = lines.pop()
    assert (last["event"], sorted(last["plugins"])) == ("plugins_started", ["a", "b"])
    assert sorted((line["event"], line["plugin"], line["retry_in"]) for line in lines) == [
        ("startup_failed", "a", 1.0),
        ("startup_failed", "a", 2.0),
        ("startup_failed", "a", 4.0),
        ("startup_failed", "b", 1.0),
    ]


async def test_plugins_shut_down_in_reverse_order_despite_errors() -> None:
    ended: list[Any] = []
    cancelled: list[Any] = []
    enough = asyncio.Event()

    async def hangs(state: Any) -> None:
        while not enough.is_set():
            try:
                await enough.wait()
            except asyncio.CancelledError:
                cancelled.append(state)

    async def breaks_off(state: Any) -> None:
        raise asyncio.CancelledError

    span = Lifespan(
        [
            plugin("first", lambda: 1, ended.append),
            plugin("second", lambda: 2, hangs),
            plugin("third", lambda: 3, lambda state: state / 0),
            plugin("fourth", None, ended.append),
            plugin("fifth", lambda: 5, ended.append),
            plugin("sixth", lambda: None, ended.append),
            plugin("seventh", lambda: 7, breaks_off),
        ],
        shutdown_seconds=0.05,
    )
    await span.start()
    with capture_logs() as lines:
        await span.stop()
    await asyncio.sleep(0)
    enough.set()
    assert (ended, cancelled) == ([None, 5, None, 1], [2])
    assert [line["plugin"] for line in lines] == ["third", "second"]


async def test_start_up_that_waits_for_its_next_try_is_not_slow() -> None:
    tries = iter([OSError(), 1])

    async def fails_once() -> None:
        if isinstance(outcome := next(tries), OSError):
            raise outcome

    async def sleep(_: float) -> None:
        await asyncio.sleep(0.1)

    span = Lifespan([plugin("a", fails_once)], sleep=sleep, patience_seconds=0.01)
    with capture_logs() as lines:
        await span.start()
    assert [line["event"] for line in lines] == ["startup_failed", "plugins_started"]


async def test_slow_start_up_is_logged() -> None:
    enough, tries = asyncio.Event(), []

    async def hangs() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise asyncio.CancelledError
        await enough.wait()
        return 1

    span = Lifespan([plugin("a", hangs)], sleep=AsyncMock(), slow_seconds=0.01, patience_seconds=0.01)
    with capture_logs() as lines:
        starting = asyncio.create_task(span.start())
        await until_async(lambda: sum(line["event"] == "startup_slow" for line in lines) >= 2)
        enough.set()
        await starting
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}  # Nothing watches a start-up that has ended.
    assert span.states == {"a": 1}
    assert [line["plugin"] for line in lines if line["event"] == "startup_failed"] == ["a"]
    slow = next(line for line in lines if line["event"] == "startup_slow")
    assert re.search(rf"test_lifespan\.py:{hangs.__code__.co_firstlineno + 4} hangs$", slow["at"][-1])


async def test_slow_start_up_in_a_thread_is_logged_with_its_first_line() -> None:
    enough = threading.Event()
    span = Lifespan([plugin("a", enough.wait), plugin("b", lambda: enough.wait(60))], patience_seconds=0.01)
    with capture_logs() as lines:
        starting = asyncio.create_task(span.start())
        await until_async(lambda: sum(line["event"] == "startup_slow" for line in lines) >= 2)
        enough.set()
        await starting
    places = {line["plugin"]: line["at"] for line in lines if line["event"] == "startup_slow"}
    assert re.search(r"/threading\.py:\d+$", places["a"][0])
    assert re.search(r"/test_lifespan\.py:\d+$", places["b"][0])


async def test_failing_start_up_holds_up_no_other_plugin() -> None:
    enough = asyncio.Event()

    def connects() -> str:
        if not enough.is_set():
            raise OSError
        return "at last"

    plugins = [plugin("down", connects), plugin("up", lambda: 1)]
    span = Lifespan(plugins, sleep=lambda _: enough.wait(), patience_seconds=0.01)
    with capture_logs() as lines:
        await span.start()
        assert (span.states, span.has_started) == ({"up": 1}, False)
        enough.set()
        await until_async(lambda: span.has_started)
        await asyncio.sleep(0)
    assert [line["plugins"] for line in lines if line["event"] == "plugins_started"] == [["up"], ["down"]]


async def test_worker_waits_for_its_only_plugin_however_long_it_starts() -> None:
    enough = asyncio.Event()
    span = Lifespan([plugin("only", enough.wait)], patience_seconds=0.01)
    starting = asyncio.create_task(span.start())
    assert not (await asyncio.wait({starting}, timeout=0.05))[0]
    enough.set()
    await starting
    assert span.has_started


async def test_plugins_that_did_not_start_are_not_shut_down() -> None:
    ended: list[Any] = []
    reached = asyncio.Event()

    async def forever(_: float) -> None:
        reached.set()
        await asyncio.sleep(60)

    span = Lifespan([plugin("a", lambda: 1, ended.append), plugin("b", lambda: 1 / 0, ended.append)], sleep=forever)
    starting = asyncio.create_task(span.start())
    await asyncio.wait_for(reached.wait(), 60)
    starting.cancel()
    await asyncio.wait({starting})
    await span.stop()
    assert ended == [1]
