"""Records that Redis has lost: eviction, FLUSHDB and DEL leave evidence for some days."""

from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from credhook.ops.findings import attention
from credhook.ops.fleet import read_fleet
from support.store.failing_scripts import POWER_CUT, FailingStore, Sabotage
from support.store.stores import EVENT, INDEX, job_id, store_on
from support.worker.claiming import EventQueue
from support.worker.harness import DATA


def remark(queue: EventQueue) -> list[str]:
    fleet = read_fleet(store_on(queue.redis), "here")
    return [finding.what for finding in attention(fleet) if finding.name == "events.vanished"]


async def vanish(queue: EventQueue, *event_ids: str) -> list[Any]:
    """Accept the events, delete their records, and sweep twice. Return what was logged of it."""
    await queue.accept(*event_ids)
    queue.redis.delete(*(EVENT + event_id for event_id in event_ids))
    assert await queue.take() == []  # It removes the jobs.
    queue.lapse()
    with capture_logs() as logs:
        queue.sweep()
        queue.sweep()
    return [entry for entry in logs if entry["event"] == "events_vanished"]


async def test_deleted_records_are_counted_once_and_named(queue: EventQueue) -> None:
    assert remark(queue) == []
    (line,) = await vanish(queue, *(f"m{number}" for number in range(30)))
    assert (line["count"], line["events"][0], len(line["events"])) == (30, "m0", 20)
    queue.redis.zadd(INDEX.open, {"m1": 1})  # As if its sweep had been cut after the note.
    queue.sweep()
    (what,) = remark(queue)
    assert what.startswith("Redis has lost the records of 30 acknowledged events, the first ")
    assert queue.redis.zcard(INDEX.vanished) == 30
    assert not queue.redis.exists(INDEX.open)
    for key in (INDEX.vanished, INDEX.losses):
        assert 259_000 < queue.redis.ttl(key) <= 259_200


async def test_loss_is_dated_by_its_first_event(queue: EventQueue) -> None:
    await vanish(queue, "m1")
    queue.redis.hincrby(INDEX.losses, "first", -3_600_000)
    await vanish(queue, "m2")
    assert remark(queue) == ["Redis has lost the records of 2 acknowledged events, the first 60 min ago"]


async def test_evidence_of_vanished_records_is_bounded(queue: EventQueue) -> None:
    queue.redis.zadd(INDEX.open, {f"m{number}": 1 for number in range(1_500)})
    queue.sweep()
    assert queue.redis.zcard(INDEX.vanished) == 1_000
    assert queue.redis.hget(INDEX.losses, "count") == b"1500"


async def test_emptied_redis_is_reported_with_the_number_of_events_that_were_not_done(queue: EventQueue) -> None:
    await queue.accept("m1")
    now = int(queue.redis.time()[0]) * 1_000
    for key, event_id in ((INDEX.dead, "m2"), (INDEX.unhandled + DATA, "m3"), (INDEX.quarantined, "m4")):
        queue.redis.zadd(key, {event_id: now})
    first, second = queue.sweeper(), queue.sweeper()
    for sweeper in (first, second):
        sweeper.run()
    queue.redis.flushdb()
    await queue.accept("m5")
    with capture_logs() as logs:
        for sweeper in (queue.sweeper(), first, second, first):  # The first one does not remember the queue.
            sweeper.run()
    assert [(entry["event"], entry["events"]) for entry in logs] == [("store_emptied", 4)]
    (what,) = remark(queue)
    assert what.startswith("Redis has lost the records of 4 acknowledged events, the first ")


@pytest.mark.parametrize("lost", ["the mark alone", "settled events", "erased events"])
async def test_store_that_lost_no_event_to_be_handled_is_not_reported(queue: EventQueue, lost: str) -> None:
    sweeper = queue.sweeper()
    if lost != "settled events":
        await queue.accept("m1")
    sweeper.run()
    if lost == "the mark alone":
        queue.redis.delete(INDEX.mark)
    elif lost == "settled events":
        queue.redis.flushdb()
    else:
        queue.erase("m1")
    with capture_logs() as logs:
        sweeper.run()
    assert (logs, remark(queue)) == ([], [])
    assert queue.redis.exists(INDEX.mark)


@pytest.mark.parametrize("number", range(1, 40))
async def test_erasure_that_was_cut_is_no_loss(queue: EventQueue, number: int) -> None:
    await queue.accept("m1")
    store = FailingStore(queue.redis, {"erase": Sabotage(number, POWER_CUT)})
    with suppress(ResponseError):
        store.run("erase", [3_600, "key", "", "erasure", "", "m1", job_id("m1"), ""])
    queue.redis.delete(INDEX.jobs)
    with capture_logs() as logs:
        queue.sweep()
    assert "events_vanished" not in [entry["event"] for entry in logs]


async def test_erasure_removes_the_evidence(queue: EventQueue) -> None:
    await vanish(queue, "m1")
    queue.erase("m1")
    assert not queue.redis.exists(INDEX.vanished)
    await queue.accept("m2")
    queue.redis.delete(EVENT + "m2")
    queue.erase("m2")
    assert not queue.redis.zscore(INDEX.open, "m2")
