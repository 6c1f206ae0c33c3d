"""Whatever a handler is and does, it ends as a value."""

import asyncio
import functools
import gc
import io
import json
import logging
import re
import threading
import warnings
import weakref
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import structlog

from credhook.logs import configure_logs
from credhook.logs.places import places
from credhook.worker.attempt import running
from credhook.worker.handlers.registry import Handler
from support.process.fake_children import Clock
from support.waiting import until_async

NOTHING: Any = None


async def outcome(
    function: Any, seconds: float = 5.0, *, event_id: str = "e1", runs: running.Runs | None = None
) -> Exception | None:
    """What comes of running the function as a handler, in a process that runs others as far as it is told."""
    handler = Handler("t.f", frozenset(), function)
    event = SimpleNamespace(webhook_id=event_id, type="t", resource_id="r", attempt=1)
    runs = runs or running.Runs(10)
    return await running.run(handler, cast(Any, event), NOTHING, timeout=seconds, runs=runs, grace=0.05)


def returns(event: Any, context: Any) -> str:
    return "an ignored value"


def raising(error: BaseException) -> Any:
    def handle(event: Any, context: Any) -> None:
        raise error

    return handle


def hangs(event: Any, context: Any) -> None:
    threading.Event().wait(30)


def as_coroutine(function: Any) -> Any:
    async def handle(event: Any, context: Any) -> Any:
        return function(event, context)

    return handle


FORMS = (as_coroutine, lambda plain: plain)
EXITS = (SystemExit(3), BaseExceptionGroup("", [ValueError(), SystemExit(3)]))


async def leaks_a_cancellation(event: Any, context: Any) -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


async def swallows(event: Any, context: Any) -> None:
    for _ in range(3):  # Twice for us, once for the end of the test's loop.
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        *((form(returns), type(None)) for form in FORMS),
        *((form(raising(ValueError())), ValueError) for form in FORMS),
        *((form(raising(error)), running.HandlerCrashed) for form in FORMS for error in EXITS),
        (as_coroutine(raising(KeyboardInterrupt())), running.HandlerCrashed),
        (raising(StopIteration()), running.HandlerCrashed),
        (leaks_a_cancellation, running.HandlerCrashed),
    ],
)
async def test_run_returns_how_the_handler_ended(function: Any, kind: type[Exception | None]) -> None:
    error = await outcome(function)
    assert type(error) is kind
    if error is not None and function is not leaks_a_cancellation:
        assert "attempt/test_running.py" in str(places(error, 9))


async def test_task_whose_error_a_handler_raises_goes_on() -> None:
    """Its frame is in the traceback. Before Python 3.13, to clear it ends the task."""
    asked: asyncio.Queue[asyncio.Future[int]] = asyncio.Queue()

    async def refuses() -> None:
        while future := await asked.get():
            try:
                future.set_result(int("none"))
            except ValueError as error:
                future.set_exception(error)

    async def asks(event: Any, context: Any) -> None:
        asked.put_nowait(future := asyncio.get_running_loop().create_future())
        await future

    task = asyncio.create_task(refuses())
    assert [type(await outcome(asks)) for _ in range(2)] == [ValueError] * 2
    task.cancel()


async def drops_at_its_end(event: Any, context: Any) -> None:
    _kept = asyncio.sleep(0)


def drops(event: Any, context: Any) -> None:
    asyncio.sleep(0)  # type: ignore[unused-coroutine]


def decorated(event: Any, context: Any) -> Any:
    return as_coroutine(raising(ValueError()))(event, context)


async def returns_a_task(event: Any, context: Any) -> Any:
    return asyncio.create_task(decorated(event, context))


@pytest.mark.parametrize(("function", "kind"), [
    *((function, running.CoroutineNotAwaited) for function in (drops, as_coroutine(drops), drops_at_its_end)),
    (decorated, ValueError), (functools.wraps(returns_a_task)(decorated), ValueError),
    (as_coroutine(decorated), ValueError), (returns_a_task, ValueError),
])  # fmt: skip
async def test_missing_await_fails_the_handler(function: Any, kind: type[Exception]) -> None:
    with warnings.catch_warnings():
        configure_logs(io.StringIO())
        for _ in range(2):  # Python warns only of the first, by itself.
            assert isinstance(await outcome(function), kind)
    assert await outcome(returns) is None


async def test_line_that_a_handler_logs_names_event_and_handler() -> None:
    def logs(event: Any, context: Any) -> None:
        structlog.get_logger("accounts").info("first", handler="its own")
        logging.getLogger("accounts").warning("second %s", 2)

    async def logs_elsewhere(event: Any, context: Any) -> None:
        logs(event, context)
        await asyncio.create_task(as_coroutine(logs)(event, context))
        await asyncio.to_thread(logs, event, context)

    output = io.StringIO()
    with warnings.catch_warnings():
        configure_logs(output)
        await asyncio.gather(outcome(logs, event_id="e1"), outcome(logs_elsewhere, event_id="e2"))
        logging.getLogger("accounts").warning("outside")
    *lines, outside = map(json.loads, output.getvalue().splitlines())
    expected = {"event_type": "t", "resource_id": "r", "attempt": 1}
    assert all(line.items() >= expected.items() for line in lines)
    assert Counter((line["webhook_id"], line["handler"]) for line in lines) == {
        ("e1", "its own"): 1, ("e1", "t.f"): 1, ("e2", "its own"): 3, ("e2", "t.f"): 3,
    }  # fmt: skip
    assert "webhook_id" not in outside


async def waits_deep_within(event: Any, context: Any) -> None:
    async def inner() -> None:
        await asyncio.sleep(60)

    await inner()


@pytest.mark.parametrize("function", [waits_deep_within, swallows, hangs])
async def test_timeout_names_the_line_at_which_the_handler_was(function: Any) -> None:
    late = await outcome(function, seconds=0.05)
    assert isinstance(late, running.HandlerTimeout)
    name = "inner" if function is waits_deep_within else function.__name__
    assert re.findall(r"attempt/test_running\.py:\d+ (\w+)", str(places(late, 9)))[-1] == name  # The innermost is last.


async def test_breakpoint_suspends_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.untimed, "is_set", lambda: True)
    assert await outcome(lambda *_: asyncio.sleep(0.05), seconds=0.01) is None


async def test_ended_run_is_freed_without_the_collector() -> None:
    runs, seen = running.Runs(10), list[Any]()

    async def handle(event: Any, context: Any) -> None:
        seen.append(weakref.ref(next(iter(runs.alive.values()))))

    gc.disable()
    try:
        assert await outcome(handle, runs=runs) is None
        await asyncio.sleep(0)
        assert seen[0]() is None
    finally:
        gc.enable()


async def test_hanging_threads_keep_no_other_handler_out() -> None:
    hanging = [asyncio.create_task(outcome(hangs, seconds=60.0)) for _ in range(40)]
    assert await asyncio.gather(*(outcome(returns, seconds=60.0) for _ in range(10))) == [None] * 10
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


async def test_thread_that_cannot_start_takes_no_place() -> None:
    runs = running.Runs(1)
    with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        failed = await outcome(returns, runs=runs)
    assert isinstance(failed, RuntimeError)
    assert isinstance(await outcome(raising(StopIteration()), runs=runs), running.HandlerCrashed)


async def test_swallowed_cancellation_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    ended = []

    async def loses_one(event: Any, context: Any) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)
            raise ValueError

    assert isinstance(await outcome(loses_one, seconds=0.01), running.HandlerTimeout)
    assert ended == [True]
    gc.collect()
    assert caplog.records == []


def slow_to_end(*, is_async: bool) -> tuple[Any, list[str], threading.Event]:
    """Return a handler that takes no end until it may, which of its runs have begun and ended, and that it may."""
    notes, go = list[str](), threading.Event()

    async def stubborn(event: Any, context: Any) -> None:
        notes.append("begun")
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        notes.append("ended")

    def hanging(event: Any, context: Any) -> None:
        notes.append("begun")
        go.wait(30)
        notes.append("ended")

    return (stubborn if is_async else hanging), notes, go


@pytest.mark.parametrize("is_async", [True, False])
async def test_handler_does_not_run_beside_its_earlier_run(is_async: bool) -> None:
    runs = running.Runs(3)
    function, notes, go = slow_to_end(is_async=is_async)
    assert isinstance(await outcome(function, seconds=0.02, runs=runs), running.HandlerTimeout)
    await until_async(lambda: notes, what="its begin")
    assert isinstance(await outcome(function, seconds=0.02, runs=runs), running.StillRunning)
    assert runs.defer_to("e1", "t.f")
    assert notes == ["begun"]
    assert await outcome(returns, event_id="e2", runs=runs) is None
    go.set()
    await until_async(lambda: not runs.defer_to("e1", "t.f"), what="its end")
    assert await outcome(function, runs=runs) is None
    assert notes == ["begun", "ended"] * 2


@pytest.mark.parametrize("is_async", [True, False])
async def test_hung_runs_are_counted_until_they_end(is_async: bool) -> None:
    runs = running.Runs(3, clock := Clock())
    function, _, go = slow_to_end(is_async=is_async)
    names = ("e1", "e2", "e3")
    await asyncio.gather(*(outcome(function, 0.02, event_id=one, runs=runs) for one in names))
    full = await outcome(returns, 0.02, event_id="e4", runs=runs)  # Each thread keeps its place.
    seen = [(runs.hung, runs.are_too_many)]  # They may be cleaning up.
    clock.now += running.HUNG_AFTER_SECONDS + 1
    seen.append((runs.hung, runs.are_too_many))
    runs.limit = 6
    seen.append((runs.hung, runs.are_too_many))
    daemons = [one.daemon for one in threading.enumerate() if one.name == "t.f"]
    go.set()  # Before anything can fail: threads that wait would outlive the test.
    assert all(daemons)
    assert seen == [(0, False), (3, True), (3, False)]
    assert isinstance(full, running.HandlerTimeout) is not is_async
    await until_async(lambda: runs.hung == 0, what="their end")
    assert not runs.are_too_many
    assert await outcome(function, runs=runs) is None


async def test_run_is_too_many_once_its_event_has_waited_long() -> None:
    runs = running.Runs(100, clock := Clock())
    function, _, go = slow_to_end(is_async=False)
    await outcome(function, seconds=0.02, runs=runs)
    clock.now += running.LONGEST_AWAITED_SECONDS + 1
    seen = [runs.are_too_many, await outcome(function, runs=runs), runs.are_too_many]
    go.set()
    assert (seen[0], type(seen[1]), seen[2]) == (False, running.StillRunning, True)
    await until_async(lambda: not runs.are_too_many, what="its end")


@pytest.mark.parametrize("left", [False, True])
async def test_run_is_hung_only_after_it_was_abandoned(left: bool) -> None:
    runs = running.Runs(1, clock := Clock())
    function, notes, go = slow_to_end(is_async=False)
    task = asyncio.create_task(outcome(function, runs=runs))
    await until_async(lambda: notes)
    if left:
        task.cancel()  # As when the lease is lost.
        await asyncio.wait({task})
    clock.now += 1_000
    seen = runs.hung, runs.are_too_many
    go.set()
    assert seen == (left, left)
    assert left or await task is None
