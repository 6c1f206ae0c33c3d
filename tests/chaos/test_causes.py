"""Causes stay right when workers are killed while handlers fail."""

from functools import partial
from typing import Any, cast

import pytest
from fleet_harness import FleetHarness
from harness import COMPLETED
from stored_events import INDEX
from waiting import until

BUGS = """
def lookup(number):
    return {}["account"]

@handlers.on("*", give_up_on=(ValueError, KeyError, TypeError))
async def first(event, context):
    number = int(event.webhook_id[1:])
    note("begun", number)
    await asyncio.sleep(0.02)
    if number % 4 == 1:
        raise ValueError("nobody may see this")
    if number % 4 == 2:
        lookup(number)

@handlers.on("*", give_up_on=TypeError)
def second(event, context):
    if int(event.webhook_id[1:]) % 4 == 3:
        raise TypeError("nobody may see this")
"""
COUNT = 200


@pytest.fixture
def rig(rig: FleetHarness) -> FleetHarness:
    rig.plugin(BUGS)
    return rig


def standing(redis: Any, cause_id: str) -> set[int]:
    return {int(one[1:]) for one in redis.zrange(INDEX.standing(cause_id), 0, -1)}


def begun(rig: FleetHarness, least: int) -> bool:
    return len(rig.notes()) >= least


def test_each_event_that_failed_stands_with_its_bug_and_no_other_does(rig: FleetHarness) -> None:
    rig.accept(*((f"m{number}", COMPLETED, f"r{number}") for number in range(COUNT)))
    for turn in range(3):
        with rig.worker(f"killed-{turn}", CREDHOOK_CONCURRENCY="10") as worker:
            until(partial(begun, rig, 30 * (turn + 1)))
            worker.kill()
    with rig.worker("last", CREDHOOK_CONCURRENCY="10"):
        rig.settles(within=120)
    found, redis = {}, cast(Any, rig.redis)
    for one in redis.zrange(INDEX.causes, 0, -1):
        cause = redis.hgetall(INDEX.cause(one.decode()))
        events = standing(redis, one.decode())
        found[cause[b"who"].decode(), cause[b"what"].decode()] = events
        assert int(cause[b"failures"]) >= len(events)
    died = found.pop(("worker", "WorkerDied"), set())
    assert died == set()  # All of them have been handled since.
    assert found == {
        ("test.first", "ValueError"): {number for number in range(COUNT) if number % 4 == 1},
        ("test.first", "KeyError"): {number for number in range(COUNT) if number % 4 == 2},
        ("test.second", "TypeError"): {number for number in range(COUNT) if number % 4 == 3},
    }
