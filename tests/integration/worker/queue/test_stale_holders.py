"""Workers that finish an event after they have lost it: what they write never contradicts a later holder."""

from collections.abc import Awaitable, Callable

import pytest

from credhook.store import State
from credhook.store.replay import Replay, Settled
from credhook.worker.attempt.details import LIFETIME
from credhook.worker.queue.claims import Claim, Settlement
from credhook.worker.queue.failure import Failure
from support.store.stores import INDEX, store_on
from support.worker.claiming import EventQueue

DONE = Settlement(State.DONE, records={"a.b": "done 3"})
GIVEN_UP = Settlement(State.DEAD, "no", records={"a.b": "dead: no"}, failures=(Failure("a.b", "GiveUp"),))
Write = Callable[[EventQueue, Claim], Awaitable[object]]


async def settling_as_done(queue: EventQueue, claim: Claim) -> None:
    await queue.worker("stalled").settle(claim, DONE)


async def settling_as_dead(queue: EventQueue, claim: Claim) -> None:
    await queue.worker("stalled").settle(claim, GIVEN_UP)


async def recording_done(queue: EventQueue, claim: Claim) -> None:
    await queue.worker("stalled").record(claim, "a.b", "done 3", ("a.c",))


async def recording_dead(queue: EventQueue, claim: Claim) -> None:
    await queue.worker("stalled").record(claim, "a.b", "dead: no", (), Failure("a.b", "GiveUp"))


async def saving_progress(queue: EventQueue, claim: Claim) -> None:
    await queue.worker("stalled").save_progress(claim, "a.b", "half")


async def keeping_data(queue: EventQueue, claim: Claim) -> None:
    store_on(queue.redis).run("keep", [claim.event_id, claim.fence, claim.resource_id, "sealed", LIFETIME])
    assert not queue.redis.exists(INDEX.snapshot + claim.resource_id)


WRITES = pytest.mark.parametrize(
    "write", [settling_as_done, settling_as_dead, recording_done, recording_dead, saving_progress, keeping_data]
)


async def lose(queue: EventQueue) -> Claim:
    """Return the claim of a worker whose lease has ended. The event is in the queue again."""
    await queue.accept("m1")
    claim = await queue.take_one("stalled")
    queue.lapse()
    assert queue.sweep() == 1
    return claim


async def test_own_record_is_taken_though_the_clock_went_back(queue: EventQueue) -> None:
    """Between receipt and claim."""
    await queue.accept("m1")
    received = int(queue.record("m1")["received"]) + 3_600_000
    queue.redis.hset("credhook:credhook:event:m1", "received", received)
    claim = await queue.take_one("stalled")
    assert claim.fence > claim.received_at.timestamp() * 1_000
    await recording_done(queue, claim)
    assert queue.record("m1")["h:a.b"] == "done 3"


@WRITES
async def test_stale_holder_writes_nothing_into_an_event_accepted_again(queue: EventQueue, write: Write) -> None:
    await queue.accept("m1")
    old = await queue.take_one("stalled")
    assert old.fence > old.received_at.timestamp() * 1_000
    queue.erase("m1")
    await queue.accept("m1")
    before = queue.record("m1")
    await write(queue, old)
    assert queue.record("m1") == before
    again = await queue.take_one()
    assert (again.ended, again.schedules, again.causes) == ({}, {}, {})
    await write(queue, old)
    assert await queue.worker().ended(again, "a.b") == ""


@WRITES
async def test_stale_holder_writes_nothing_into_a_replayed_event(queue: EventQueue, write: Write) -> None:
    old = await lose(queue)
    assert await queue.worker().settle(await queue.take_one(), DONE) == (True, None)
    assert Replay(store_on(queue.redis))([Settled("m1", State.DONE)], how="") == [b"replayed"]
    before = queue.record("m1")
    await write(queue, old)
    assert queue.record("m1") == before
    assert not (await queue.take_one()).ended


@pytest.mark.parametrize("write", [settling_as_dead, recording_dead])
async def test_stale_failure_does_not_overwrite_another_workers_success(queue: EventQueue, write: Write) -> None:
    old = await lose(queue)
    assert await queue.worker().settle(await queue.take_one(), DONE) == (True, None)
    before = queue.record("m1")
    await write(queue, old)
    assert queue.record("m1") == before


@pytest.mark.parametrize("write", [settling_as_done, recording_done])
async def test_late_success_replaces_another_workers_failure(queue: EventQueue, write: Write) -> None:
    old = await lose(queue)
    await queue.worker().record(await queue.take_one(), "a.b", "dead: no", (), Failure("a.b", "GiveUp"))
    await write(queue, old)
    record = queue.record("m1")
    assert (record["h:a.b"], "c:a.b" in record) == ("done 3", False)
