"""Where a handler can die: at each of its awaits, whatever it awaits."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import pytest

from credhook.testing.crashes import Crash, Crashed, CrashInjector

log: list[str] = []


async def does(what: str) -> None:
    """Never suspended, as a fake would have it."""
    log.append(what)


class Manager:
    async def __aenter__(self) -> None:
        log.append("enters")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.sleep(0)
        log.append("leaves")


async def numbers() -> AsyncIterator[int]:
    await does("counts")
    yield 1
    yield 2


async def calls() -> None:
    await does("a")
    await does("b")


async def manages() -> None:
    async with Manager():
        await does("a")


async def waits() -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(log.append, "a")
    loop.call_soon(future.set_result, None)
    await future


async def gathers() -> None:
    await asyncio.gather(does("a"), does("b"))


async def wraps() -> None:
    await asyncio.wait_for(does("a"), 5)


async def iterates() -> None:
    async for number in numbers():
        await does(str(number))


async def crashes(handler: Any, crash: Crash | None) -> tuple[CrashInjector, list[str]]:
    log.clear()
    injector = CrashInjector(crash)
    if crash is None:
        await injector.run(handler())
    else:
        with pytest.raises(Crashed):
            await injector.run(handler())
    await asyncio.sleep(0.01)  # Whatever it has started would do something now.
    return injector, log.copy()


@pytest.mark.parametrize(("handler", "before_and_after"), [
    (calls, [([], ["a"]), (["a"], ["a", "b"])]),
    (manages, [([], ["enters"]), (["enters", "leaves"], ["enters", "a", "leaves"]),
               (["enters", "a"], ["enters", "a", "leaves"]), (["enters", "a"], ["enters", "a"])]),
    (waits, [(["a"], ["a"])]),
    (gathers, [([], ["a", "b"])]),
    (wraps, [([], ["a"])]),
    (iterates, [([], ["counts"]), (["counts"], ["counts", "1"]), (["counts", "1"], ["counts", "1", "2"])]),
])  # fmt: skip
async def test_each_await_is_a_place_to_die_before_and_after(
    handler: Any, before_and_after: list[tuple[list[str], list[str]]]
) -> None:
    whole, _ = await crashes(handler, None)
    found = []
    for at in range(1, whole.awaits + 1):
        before, done_before = await crashes(handler, Crash(at, "before"))
        after, done_after = await crashes(handler, Crash(at, "after"))
        assert __file__ in before.crashed_at
        assert before.crashed_at == after.crashed_at
        found.append((done_before, done_after))
    assert found == before_and_after


async def test_the_place_is_the_authors_line() -> None:
    injector, _ = await crashes(calls, Crash(2))
    assert injector.crashed_at == f"{__file__}:{calls.__code__.co_firstlineno + 2}"


@pytest.mark.parametrize("handler", [gathers, wraps, waits])
async def test_nobody_complains_of_what_it_has_left(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    await crashes(handler, Crash(1, "before"))
    gc.collect()
    assert caplog.records == []


async def test_nobody_survives_a_crash() -> None:
    async def survives() -> None:
        try:
            await does("a")
        except BaseException:  # noqa: BLE001
            log.append("survived")

    _, done = await crashes(survives, Crash(1))
    assert done == ["a", "survived"]


async def test_errors_and_results_pass_as_ever() -> None:
    async def fails() -> None:
        await does("a")
        raise ValueError("as ever")

    with pytest.raises(ValueError, match="as ever"):
        await CrashInjector(Crash(7)).run(fails())
    await CrashInjector(Crash(7)).run(asyncio.sleep(0))


async def test_who_was_tracing_goes_on() -> None:
    lines = []

    def trace(frame: Any, event: str, argument: Any) -> None:
        lines.append(event)

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        await CrashInjector(Crash(9)).run(calls())
        assert sys.gettrace() is trace
    finally:
        sys.settrace(previous)
