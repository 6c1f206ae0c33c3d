"""Who may call while it is not known whether the platform takes our credentials."""

import asyncio
from contextlib import suppress

import pytest
from own_time import in_own_time

from credhook.worker.platform.trial import LASTS, Trial


async def test_one_tries_at_a_time_and_all_go_on_once_it_is_over() -> None:
    trial = Trial()
    assert not trial.is_over
    assert trial.begin_turn()
    assert not trial.begin_turn()
    waiting = [asyncio.create_task(trial.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    trial.end()
    await asyncio.gather(*waiting)
    assert trial.is_over


async def test_a_turn_that_has_ended_is_the_next_ones() -> None:
    trial = Trial()
    trial.begin_turn()
    waiting = asyncio.create_task(trial.wait())
    await asyncio.sleep(0)
    trial.end_turn()
    await waiting
    assert not trial.is_over
    assert trial.begin_turn()
    assert not trial.begin_turn()


def test_a_turn_that_nobody_ends_holds_the_next_one_up_for_so_long() -> None:
    async def waited() -> float:
        clock = asyncio.get_running_loop().time
        trial, began = Trial(clock), clock()
        trial.begin_turn()
        assert not trial.begin_turn()
        await trial.wait()
        assert trial.begin_turn()
        return clock() - began

    assert in_own_time(waited()) == pytest.approx(LASTS)


async def test_a_token_that_is_refused_begins_it_again() -> None:
    trial = Trial()
    trial.end()
    trial.begin_again()
    assert not trial.is_over
    assert trial.begin_turn()


async def test_whoever_waits_can_be_cancelled() -> None:
    trial = Trial()
    trial.begin_turn()
    waiting = asyncio.create_task(trial.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert waiting.cancelled()
