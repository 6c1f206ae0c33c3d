"""Where a handler can die: at each await that suspends the author's code."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest

from credhook.testing.idempotency import Crashed, CrashPoint

log: list[str] = []


async def does(word: str) -> None:
    await asyncio.sleep(0)
    log.append(word)


class Manager:
    async def __aenter__(self) -> None:
        log.append("enters")

    async def __aexit__(self, *_: object) -> None:
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


async def gathers() -> None:
    await asyncio.gather(does("a"), does("b"))


async def wraps() -> None:
    await asyncio.wait_for(does("a"), 5)


async def iterates() -> None:
    async for number in numbers():
        await does(str(number))


async def crashes(handler: Any, number: int) -> tuple[CrashPoint, list[str]]:
    log.clear()
    point = CrashPoint(number)
    with pytest.raises(Crashed) if number else nullcontext():
        await point.wrap(lambda event, context: handler())(None, None)
    await asyncio.sleep(0.01)  # Tasks that survived would act now.
    return point, log.copy()


@pytest.mark.parametrize(("handler", "done"), [
    (calls, [[], ["a"]]),
    (manages, [["enters", "leaves"], ["enters", "a"]]),
    (gathers, [[]]),
    (wraps, [[]]),
    (iterates, [[], ["counts"], ["counts", "1"]]),
])  # fmt: skip
async def test_each_await_that_suspends_is_a_place_to_die(handler: Any, done: list[list[str]]) -> None:
    whole, _ = await crashes(handler, 0)
    assert [(await crashes(handler, number))[1] for number in range(1, whole.awaits + 1)] == done


async def test_the_place_is_the_authors_line() -> None:
    point, _ = await crashes(calls, 2)
    assert point.at == f"{__file__}:{does.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize("handler", [gathers, wraps])
async def test_nothing_is_logged_of_abandoned_tasks(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    await crashes(handler, 1)
    gc.collect()
    assert caplog.records == []


async def test_a_handler_that_catches_the_crash_is_dead_all_the_same() -> None:
    async def survives() -> None:
        try:
            await does("a")
        except BaseException:  # noqa: BLE001
            log.append("survived")

    _, done = await crashes(survives, 1)
    assert done == ["survived"]


async def test_an_error_before_the_crash_point_is_the_handlers() -> None:
    async def fails() -> None:
        await does("a")
        raise ValueError("as ever")

    with pytest.raises(ValueError, match="as ever"):
        await CrashPoint(7).wrap(lambda event, context: fails())(None, None)
