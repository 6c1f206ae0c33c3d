"""Tell an interruption of the attempt from a cancellation of its task."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from credhook.worker.attempt.attempt import Attempt, Interruption


@pytest.fixture
def attempt() -> Attempt:
    claim: Any = SimpleNamespace(event_id="m1")
    return Attempt(claim)


async def ends(attempt: Attempt, *, interrupted: bool, cancelled: bool) -> tuple[bool, int]:
    """Return the result of `end`, and the number of cancellations that are left."""

    async def work() -> tuple[bool, int]:
        attempt.begin()
        task = asyncio.current_task()
        assert task
        if cancelled:
            task.cancel()
        if interrupted:
            attempt.interrupt(Interruption.DRAINED)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return attempt.end(), task.cancelling()
        return attempt.end(), task.cancelling()

    return await asyncio.create_task(work())


@pytest.mark.parametrize(("interrupted", "cancelled", "expected"), [
    (True, False, (True, 0)),
    (False, True, (False, 1)),
    (True, True, (False, 1)),
    (False, False, (True, 0)),
])  # fmt: skip
async def test_only_a_cancelled_task_writes_nothing_and_keeps_its_cancellation(
    attempt: Attempt, interrupted: bool, cancelled: bool, expected: tuple[bool, int]
) -> None:
    assert await ends(attempt, interrupted=interrupted, cancelled=cancelled) == expected
