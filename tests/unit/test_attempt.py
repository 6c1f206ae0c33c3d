"""An attempt and the task that it is made in: whose cancellation it was."""

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
    """What `end` says, and how many cancellations are left to whoever has asked for them."""

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


async def test_one_that_was_broken_off_is_written_down_and_its_cancellation_is_over(attempt: Attempt) -> None:
    assert await ends(attempt, interrupted=True, cancelled=False) == (True, 0)


async def test_one_whose_task_was_cancelled_writes_nothing_and_leaves_the_cancellation(attempt: Attempt) -> None:
    assert await ends(attempt, interrupted=False, cancelled=True) == (False, 1)


async def test_the_tasks_own_cancellation_outlives_the_interruption(attempt: Attempt) -> None:
    assert await ends(attempt, interrupted=True, cancelled=True) == (False, 1)


async def test_one_that_nobody_disturbed_is_written_down(attempt: Attempt) -> None:
    assert await ends(attempt, interrupted=False, cancelled=False) == (True, 0)
