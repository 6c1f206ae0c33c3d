"""Slots and leases of one process: who waits, who is let go, and what happens to an event that is taken twice."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.attempt.slots import Slot, Slots
from credhook.worker.queue.leases import Leases

NOTHING: Any = None


def slot() -> Slot:
    return Slot(NOTHING, NOTHING, NOTHING)


def slots(number: int) -> Slots:
    return Slots(number, slot)


async def test_no_more_slots_are_made_than_are_needed_at_a_time() -> None:
    made: list[Slot] = []

    def new_slot() -> Slot:
        made.append(slot())
        return made[-1]

    four = Slots(4, new_slot)
    assert made == []
    for _ in range(3):
        held = [await four.acquire(Attempt(NOTHING)) for _ in range(2)]
        for each in held:
            four.release(each)
    assert len(made) == 2


async def test_a_slot_goes_to_whoever_has_waited_longest() -> None:
    one = slots(1)
    held = await one.acquire(Attempt(NOTHING))
    waiting = [asyncio.create_task(one.acquire(Attempt(NOTHING))) for _ in range(2)]
    await asyncio.sleep(0)
    one.release(held)
    assert await waiting[0] is held
    assert not waiting[1].done()
    one.release(held)
    assert await waiting[1] is held


async def test_what_waits_for_too_long_is_let_go_and_does_not_pass_for_quick_work() -> None:
    four = slots(4)
    held = [await four.acquire(Attempt(NOTHING)) for _ in range(4)]
    late = Attempt(NOTHING)
    waiting = asyncio.create_task(four.acquire(late))
    await asyncio.sleep(0)
    four.evict(60)
    assert not waiting.done()
    four.evict(0)
    four.release(await waiting)
    assert late.interruption is Interruption.DRAINED
    assert four.places == 4
    four.release(held.pop())
    assert four.places == 6


@pytest.mark.parametrize(("pace", "ahead"), [(0.01, 50), (0.1, 50), (0.2, 25), (0.9, 6), (1.0, 0), (math.inf, 0)])
def test_as_many_are_taken_ahead_as_end_while_redis_is_asked(pace: float, ahead: int) -> None:
    hundred = slots(100)
    hundred._pace = pace
    assert hundred.places == 100 + ahead


async def test_what_was_let_go_leaves_as_many_slots_as_before() -> None:
    one = slots(1)
    held = await one.acquire(Attempt(NOTHING))
    waiting = asyncio.create_task(one.acquire(Attempt(NOTHING)))
    await asyncio.sleep(0)
    one.evict(0)
    one.release(await waiting)
    one.release(held)
    again = await one.acquire(Attempt(NOTHING))
    second = asyncio.create_task(one.acquire(Attempt(NOTHING)))
    await asyncio.sleep(0)
    assert not second.done()
    one.release(again)
    one.release(await second)


def test_an_event_that_is_taken_again_breaks_the_older_attempt_off() -> None:
    claims: Any = SimpleNamespace(lease=15.0)
    leases, lost = Leases(claims), []
    first: Any = SimpleNamespace(event_id="e1")
    second: Any = SimpleNamespace(event_id="e1")
    leases.hold(first, lambda: lost.append("first"))
    leases.hold(first, lambda: lost.append("first again"))
    assert lost == []
    leases.hold(second, lambda: lost.append("second"))
    assert lost == ["first"]
    leases.release(first)
    leases.hold(first, lambda: None)
    assert lost == ["first", "second"]
