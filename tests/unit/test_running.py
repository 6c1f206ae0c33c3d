"""Whatever a handler is and does, it ends as a value."""

import asyncio
import functools
import sys
import threading
from typing import Any

import pytest

from worker.handlers import Handler
from worker.running import HandlerCrashed, HandlerTimeout, Threads, run

NOTHING: Any = None


async def outcome(function: Any, seconds: float = 5.0) -> Exception | None:
    return await run(Handler("t.f", frozenset(), function), NOTHING, NOTHING, timeout=seconds, threads=Threads(10))


async def returns(event: Any, context: Any) -> None: ...


async def raises(event: Any, context: Any) -> None:
    raise ValueError


async def exits(event: Any, context: Any) -> None:
    sys.exit(3)


async def interrupts(event: Any, context: Any) -> None:
    raise KeyboardInterrupt


async def leaks_a_cancellation(event: Any, context: Any) -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


async def swallows(event: Any, context: Any) -> None:
    for _ in range(2):  # Once for us, once for the end of the test's loop.
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


def plain(event: Any, context: Any) -> str:
    return "a value that nobody asked for"


def plain_raises(event: Any, context: Any) -> None:
    raise ValueError


def plain_exits(event: Any, context: Any) -> None:
    sys.exit(3)


def plain_hangs(event: Any, context: Any) -> None:
    threading.Event().wait(30)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (returns, None),
        (plain, None),
        (raises, ValueError),
        (plain_raises, ValueError),
        (exits, HandlerCrashed),
        (plain_exits, HandlerCrashed),
        (interrupts, HandlerCrashed),
        (leaks_a_cancellation, HandlerCrashed),
    ],
)
async def test_it_ends_as_a_value(function: Any, kind: type[Exception] | None) -> None:
    error = await outcome(function)
    assert type(error) is (kind or type(None))


@pytest.mark.parametrize("function", [swallows, plain_hangs])
async def test_its_time_is_over_even_if_it_will_not_go(function: Any) -> None:
    assert isinstance(await outcome(function, seconds=0.05), HandlerTimeout)


async def test_a_coroutine_hidden_behind_a_decorator_is_awaited() -> None:
    ran = []

    async def hidden(event: Any, context: Any) -> None:
        ran.append(True)
        raise ValueError

    def decorated(event: Any, context: Any) -> Any:
        return hidden(event, context)

    assert isinstance(await outcome(decorated), ValueError)
    assert isinstance(await outcome(functools.wraps(hidden)(decorated)), ValueError)
    assert ran == [True, True]


async def test_plain_handlers_that_hang_keep_nobody_out() -> None:
    hanging = [asyncio.create_task(outcome(plain_hangs, seconds=2.0)) for _ in range(40)]
    assert await asyncio.gather(*(outcome(plain, seconds=2.0) for _ in range(10))) == [None] * 10
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


async def test_cancelling_the_run_cancels_the_handler() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def patient(event: Any, context: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    running = asyncio.create_task(outcome(patient))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled.is_set()


def stops(event: Any, context: Any) -> None:
    next(iter(()))


async def test_a_plain_function_that_runs_out_of_an_iterator_ends_at_once() -> None:
    assert isinstance(await outcome(stops), HandlerCrashed)


async def test_a_thread_that_cannot_be_started_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(1)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as system:
        system.setattr(threading.Thread, "start", refuse)
        failed = await run(Handler("t.f", frozenset(), stops), NOTHING, NOTHING, timeout=5, threads=threads)
    assert isinstance(failed, RuntimeError)
    assert isinstance(
        await run(Handler("t.f", frozenset(), stops), NOTHING, NOTHING, timeout=5, threads=threads), HandlerCrashed
    )
