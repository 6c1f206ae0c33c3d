"""Claims of events: fences, leases, locks of resources, deaths of workers, and scripts that break off."""

import asyncio
import json
from contextlib import suppress
from datetime import datetime
from typing import Any
from zlib import crc32

import pytest
from prometheus_client import REGISTRY
from redis import exceptions
from structlog.testing import capture_logs

from credhook.store import State
from credhook.store.connection import BRIEFLY, open_redis, open_redis_sync
from credhook.store.counts import counts_of
from credhook.store.errors import is_unwell
from credhook.store.replay import Replay, Settled
from credhook.worker.attempt.details import state_of
from credhook.worker.queue.claims import Candidates, Claim, Claims, Settlement, operation
from credhook.worker.queue.failure import WORKER_DIED, Failure
from credhook.worker.queue.leases import put_back, reclaim
from support.redis.redis_proxy import redis_proxy
from support.redis.redis_server import configured
from support.store.failing_scripts import POWER_CUT, FailingStore, Sabotage
from support.store.store_rules import disagreements
from support.store.stores import EVENT, INDEX, job_id, last_entry, run_accept, store_on
from support.waiting import until_async
from support.worker.claiming import COMPLETED, URGENT, EventQueue, take_one

DONE = Settlement(State.DONE)
#: Commands of a script at which it is broken off; none has more.
COMMANDS = range(1, 30)
#: How Redis's own condition is named in an error, also within a script.
SIGNS = ["OOM", "READONLY", "MISCONF", "NOREPLICAS", "BUSY", "LOADING", "MASTERDOWN", "NOAUTH", "NOPERM", "WRONGSCHEMA"]


async def test_claim_from_before_an_erasure_cannot_settle(queue: EventQueue) -> None:
    await queue.accept("m1/r")
    old = await queue.take_one("stalled")
    queue.erase("m1")
    assert not queue.redis.exists(INDEX.started)
    await queue.accept("m1/r")
    assert queue.redis.ttl("rq:job:" + job_id("m1")) == -1  # The erasure had let it expire.
    assert (await queue.take_one()).fence > old.fence
    assert await queue.worker("stalled").settle(old, Settlement(State.DEAD, "no")) == (False, None)
    assert queue.record("m1")["state"] == "accepted"


async def test_worker_that_lost_its_lease_still_records_its_handlers(queue: EventQueue) -> None:
    await queue.accept("m1")
    old = await queue.take_one("stalled")
    queue.lapse()
    assert queue.sweep() == 1
    await queue.take_one()
    failure = Failure("a.c", "GiveUp")
    settlement = DONE._replace(records={"a.b": "done", "a.c": "dead: no"}, failures=(failure,))
    assert await queue.worker("stalled").settle(old, settlement) == (False, None)
    assert (queue.record("m1")["h:a.b"], queue.record("m1")["state"]) == ("done", "accepted")
    assert queue.redis.hget(INDEX.cause + failure.cause, "what") == b"GiveUp"
    assert queue.record("m1")["c:a.c"] == failure.cause


async def test_draining_worker_queues_the_blocked_event(queue: EventQueue) -> None:
    await queue.accept("e1/r", "e2/r")
    first = await queue.take_one()
    other = queue.worker("other")
    assert (await other.take(10)).claims == ()
    queue.redis.zadd(INDEX.open, {"e2": 1})
    assert await queue.worker().settle(first, DONE, follow=False) == (True, None)
    assert not queue.redis.zcount(INDEX.open, 1, 1)
    assert (await take_one(other)).event_id == "e2"  # At once: without the sweeper.


async def test_lapsed_claim_is_remembered_after_the_next_take(queue: EventQueue) -> None:
    await queue.accept("e 1/r", "e2/r")
    first = await queue.take_one("stalled")
    queue.lapse()
    other = queue.worker("other")
    second = await take_one(other)
    assert await queue.worker("stalled").renew([first]) == [first]
    assert queue.holder_of("r") == second.event_id == "e2"
    assert await other.settle(second, DONE) == (True, None)
    assert queue.sweep() == 1
    again = await take_one(other)
    assert (again.event_id, again.lapses, again.first, again.seen) == ("e 1", 1, False, False)
    assert again.fence > first.fence
    assert await queue.worker("stalled").renew([first]) == [first]
    assert await queue.worker("stalled").settle(first, DONE) == (False, None)
    assert await other.settle(again, DONE) == (True, None)
    assert not queue.redis.exists(INDEX.locks, INDEX.leases, INDEX.open)


async def test_fence_rises_although_the_clock_has_gone_back(queue: EventQueue) -> None:
    await queue.accept("e1")
    earlier = int(queue.redis.time()[0]) * 1_000 + 3_600_000
    queue.redis.hset(EVENT + "e1", mapping={"fence": earlier})
    assert (await queue.take_one()).fence == earlier + 1


async def test_late_settlement_leaves_the_resource_to_its_holder(queue: EventQueue) -> None:
    await queue.accept("e1/r")
    first = await queue.take_one("stalled")
    queue.lapse()
    await queue.accept("e2/r", "e3/r")
    (second,) = await queue.take("second")
    assert second.event_id == "e2"
    assert await queue.worker("stalled").settle(first, DONE, follow=True) == (True, None)
    assert await queue.follow(second, "second") == "e3"


async def test_events_settled_together_let_the_next_begin(queue: EventQueue) -> None:
    await queue.accept("e1/r")
    claims = queue.worker()
    first = await take_one(claims)
    await queue.accept("e3/r", "e4/r", "e5/r")
    assert not await queue.take()
    queue.lapse("e1")
    await queue.accept("e2/r")
    second = await take_one(claims)
    settled = await asyncio.gather(*(claims.settle(claim, DONE, follow=True) for claim in (first, second)))
    assert [ours for ours, _ in settled] == [True, True]
    assert [following.event_id for _, following in settled if following] == ["e3"]


async def test_erasure_leaves_the_resource_to_its_holder(queue: EventQueue) -> None:
    await queue.accept("e1/r", "e2/r", "e3/r")
    first = await queue.take_one()
    queue.erase("e2")
    assert queue.holder_of("r") == "e1"
    assert not await queue.take()
    queue.redis.zadd(INDEX.prefix + "blocked:r", {job_id("e2"): 1})  # As if it had been cut.
    assert await queue.follow(first) == "e3"


async def test_event_handed_back_goes_to_the_head_of_the_queue(queue: EventQueue) -> None:
    await queue.accept("m1", "m2", "m3")
    await queue.worker().settle(await queue.take_one(), Settlement(State.ACCEPTED))
    again = await queue.take_one()
    assert (again.event_id, again.lapses) == ("m1", 0)


async def test_second_job_of_an_event_claims_nothing(queue: EventQueue) -> None:
    await queue.accept("e1")
    claim = await queue.take_one()
    queue.push_job("e1")
    assert await queue.take("other") == []
    await queue.worker().settle(claim, DONE)
    for one in ("e1", "erased"):
        queue.push_job(one)
        queue.redis.hset("rq:job:" + job_id(one), "status", "queued")
    assert await queue.take("other") == []
    assert not queue.redis.keys("rq:job:*")


async def test_urgent_events_leave_one_slot_in_four_to_others(queue: EventQueue) -> None:
    """They come first at all because presented data may be readable once, or for minutes."""
    await queue.accept(*(f"o{number}" for number in range(10)))
    await queue.accept(*(f"u{number}" for number in range(40)), kind=URGENT)
    claims, taken = queue.worker(), list[str]()
    for _ in range(50):
        (claim,) = (await claims.take(1)).claims
        await claims.settle(claim, DONE)
        taken.append(claim.event_id)
    kinds = "".join(one[0] for one in taken)
    assert all(kinds[start : start + 4].count("o") == 1 for start in range(0, 40, 4)), kinds
    assert [one for one in taken if one[0] == "o"] == [f"o{number}" for number in range(10)]


async def test_urgent_list_is_bounded(queue: EventQueue) -> None:
    queue.redis.rpush(INDEX.urgent, *(job_id(f"old{number}") for number in range(10_000)))
    await queue.accept("m1", kind=URGENT)
    assert queue.redis.llen(INDEX.urgent) == 10_000
    assert queue.redis.lindex(INDEX.urgent, -1) == job_id("m1").encode()


async def test_retried_urgent_event_stays_urgent(queue: EventQueue) -> None:
    await queue.accept("m1", "m2")
    await queue.accept("u0", "u1", "u2", kind=URGENT)
    claims = queue.worker()
    for claim in (await claims.take(3, urgent=3)).claims:
        await claims.settle(claim, Settlement(State.WAITING, "NotFound 404", wait=0.0))
    await asyncio.sleep(0.01)  # The retries are due within a millisecond.
    assert [claim.event_id for claim in (await claims.take(2, urgent=1)).claims] == ["u0", "m1"]
    assert queue.redis.llen(INDEX.urgent) == 2
    queue.redis.delete(INDEX.urgent, INDEX.jobs)
    queue.lapse()
    assert (queue.sweep(), queue.redis.llen(INDEX.urgent)) == (5, 3)


async def test_claim_for_rqs_worker_has_the_resources_latest_state(queue: EventQueue) -> None:
    await queue.accept("m1/r", "m2/r")
    await queue.worker().settle(await queue.take_one(), Settlement(State.DONE, latest=(3, 7)))
    queue.redis.hset(EVENT + "m2", "killed", 1)  # A poison candidate may be claimed: such a worker has nothing else.
    claim = await queue.worker("").claim("m2")
    assert isinstance(claim, Claim)
    assert claim.latest == (3, 7)


async def test_waiting_event_stays_until_it_is_due(queue: EventQueue) -> None:
    await queue.accept("m1")
    claim = await queue.take_one()
    await queue.worker().settle(claim, Settlement(State.WAITING, "no", wait=60.0))
    assert await queue.worker().renew([claim]) == [claim]
    assert 30 < ((await queue.worker().take(1)).due or 0) <= 60
    assert not queue.redis.zcard(INDEX.leases)
    queue.push_job("m1")
    assert await queue.take() == []
    assert queue.record("m1")["state"] == "waiting"
    queue.redis.delete(INDEX.scheduled)  # RQ has lost it.
    queue.lapse()
    assert queue.sweep() == 0
    queue.redis.hset(EVENT + "m1", "due", 1)
    queue.redis.zadd(INDEX.scheduled, {job_id("m1"): 1})  # Overdue: nobody schedules.
    queue.redis.zadd(INDEX.failed, {job_id("m1"): 1})  # As RQ does if a worker of its own dies.
    queue.redis.rpush(INDEX.intermediate, job_id("m1"))
    assert queue.sweep() == 1
    assert not queue.redis.exists(INDEX.scheduled, INDEX.failed, INDEX.intermediate)


async def test_due_retry_is_claimed_although_the_clock_has_gone_back(queue: EventQueue) -> None:
    """The schedule has said that it is due, and the record says that it will be in a minute."""
    await queue.accept("e1")
    await queue.worker().settle(await queue.take_one(), Settlement(State.WAITING, wait=60.0))
    queue.redis.zadd(INDEX.scheduled, {job_id("e1"): 1})
    queue.redis.zadd(INDEX.open, {"e1": 1})
    again = await queue.take_one()
    assert again._replace(now=0).age == 0
    assert not queue.redis.zcount(INDEX.open, 1, 1)  # It has moved: behind a long queue it is no orphan.


async def test_dead_workers_event_returns_although_the_clock_went_back(queue: EventQueue) -> None:
    await queue.accept("e1")
    queue.redis.zadd(INDEX.open, {"e1": int(queue.redis.time()[0]) * 1_000 + 3_600_000})
    await queue.take_one("dies")
    queue.redis.delete(INDEX.leases, INDEX.locks)
    queue.redis.hset(EVENT + "e1", mapping={"state": "waiting", "due": 1})
    assert put_back(store_on(queue.redis), "e1", in_transit=0, first=True) == 1
    assert "due" not in queue.record("e1")  # It is queued, so it is due.
    assert (await queue.take_one("next")).event_id == "e1"


async def test_worker_waits_until_the_next_retry_or_job(queue: EventQueue) -> None:
    """Redis takes a thousandth of a second for no time-out, and waits for ever."""
    for seconds in (0.001, 0.0004, 0.0):
        await queue.worker("idle").wait_for_job(seconds)
    await queue.accept("e1", "e2")
    await queue.worker().wait_for_job(1.0)
    assert [claim.event_id for claim in await queue.take()] == ["e1", "e2"]


async def test_failing_redis_takes_no_claim_away(queue: EventQueue) -> None:
    await queue.accept("m1")
    store = FailingStore(queue.redis)
    claims = Claims(store.for_async_code(), lease=60.0, worker="w")
    claim = await take_one(claims)
    ends = queue.redis.zscore(INDEX.started, f"{claim.job}:{claim.fence}") or 0
    assert 60 < ends - queue.redis.time()[0] <= 121  # RQ's tools leave it alone for as long.
    for number in range(1, 7):
        store.plans["write"] = Sabotage(number)
        with pytest.raises(exceptions.ResponseError):
            await claims.renew([claim])
    assert await claims.renew([claim]) == []


async def test_full_redis_takes_renewals_and_settlements(queue: EventQueue) -> None:
    await queue.accept("m1", "m2")
    claims = queue.worker()
    one, two = (await claims.take(2, urgent=0)).claims
    with configured(queue.redis, "maxmemory", "1"):
        with capture_logs() as lines:
            recording = asyncio.create_task(claims.record(one, "a.b", "done"))
            await until_async(lambda: lines, what="the refusal of the record")
        assert [line["event"] for line in lines] == ["store_unreachable"]
        assert await claims.renew([one, two]) == []
        assert await claims.settle(two, DONE) == (True, None)
    await asyncio.wait_for(recording, 60)
    assert queue.record("m1")["h:a.b"] == "done"
    assert queue.record("m2")["state"] == "done"


@pytest.mark.parametrize(
    "error",
    [
        exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        exceptions.ReadOnlyError("You can't write against a read only replica."),
        exceptions.NoPermissionError("ACL failure in script: User w has no permissions to run the 'hset' command"),
        *(exceptions.ResponseError(f"Error running script: -{word} no") for word in SIGNS),
        exceptions.ResponseError("Error running script: The user executing the script can't run this command"),
        exceptions.MasterDownError("Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
        exceptions.ConnectionError("closed"),
    ],
)
def test_errors_of_redis_6_and_7_are_recognised(error: Exception) -> None:
    assert is_unwell(error)
    assert not is_unwell(exceptions.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"))


async def test_settlement_that_cannot_be_written_fails_alone(queue: EventQueue) -> None:
    await queue.accept("e1", "e2", "e3")
    claims = queue.worker()
    taken = (await claims.take(10, urgent=0)).claims
    queue.redis.delete(EVENT + "e2")
    queue.redis.set(EVENT + "e2", "of another kind")
    results = await asyncio.gather(*(claims.settle(claim, DONE) for claim in taken), return_exceptions=True)
    assert results[0] == results[2] == (True, None)
    assert isinstance(results[1], exceptions.ResponseError)


async def test_hand_back_whose_reply_is_lost_is_written_once(queue: EventQueue, redis_url: str) -> None:
    await queue.accept("m1")
    with redis_proxy(redis_url) as proxy:
        async with open_redis(proxy.url) as redis:
            claims = Claims(store_on(redis), lease=5.0, worker="token")
            claim = await take_one(claims)
            proxy.lose = 1
            ours, _ = await claims.settle(claim, Settlement(State.ACCEPTED))
        assert proxy.lost == 1
    assert ours
    assert "lapses" not in queue.record("m1")
    assert queue.redis.lrange(INDEX.jobs, 0, -1) == [job_id("m1").encode()]


async def test_counts_of_a_queue_distinguish_states_and_ages(queue: EventQueue) -> None:
    await queue.accept("e1", "e2")
    now = queue.redis.time()[0] - 60  # By the clock of a host that is behind.
    queue.redis.zadd(INDEX.dead, {"yesterday's": (now - 86_460) * 1_000, "today's": (now - 86_340) * 1_000})
    for key in (INDEX.quarantined, INDEX.unreadable, INDEX.unhandled + COMPLETED):
        queue.redis.zadd(key, {"e3": 1})
    found = counts_of(store_on(queue.redis), INDEX, now=now)
    assert (found.quarantined, found.unreadable, found.unhandled, found.waiting) == (1, 1, {COMPLETED: 1}, 5)
    assert (found.open, found.queued, found.dead, found.dead_recently, found.oldest_age) == (2, 2, 2, 1, 0.0)


def test_next_announcement_removes_an_expired_announcement(queue: EventQueue) -> None:
    now = queue.redis.time()[0] * 1_000
    queue.redis.hset(INDEX.receivers, mapping={"gone": f"1 {now - 61_000} {{}}", "other": f"1 {now - 30_000} {{}}"})
    store_on(queue.redis).run("announce", ["this", "{}", 60_000], keys=[INDEX.receivers])
    assert set(queue.redis.hkeys(INDEX.receivers)) == {b"this", b"other"}


async def test_backfilled_events_keep_their_order(queue: EventQueue) -> None:
    ids = ("b2", "b1", "b3")
    store = store_on(queue.redis)
    for _ in range(2):  # Each comes twice.
        run_accept(store, *((one, COMPLETED, "r") for one in ids), since=last_entry(store))
    queue.redis.hset(EVENT + "b2", "trace", "00-1")
    received = [int(queue.record(one)["received"]) for one in ids]
    assert received == [received[0], received[0] + 1, received[0] + 2]
    claim = await queue.take_one()
    assert (claim.event_id, claim.trace, claim.first) == ("b2", "00-1", True)


async def test_place_ends_with_its_release_or_with_the_lease(queue: EventQueue) -> None:
    await queue.accept("e1", "e2", "e3")
    claims = queue.worker()
    first, second, third = (await claims.take(3, urgent=0)).claims
    assert await claims.acquire_place(first, "a.b", 1) == (True, 0)
    assert await claims.acquire_place(second, "a.b", 1) == (False, 0)
    queue.lapse("e1")
    assert await claims.acquire_place(second, "a.b", 1) == (True, 0)
    assert queue.redis.smembers(INDEX.running + "a.b") == {b"e2"}
    await claims.release_place(second, "a.b")
    assert await claims.acquire_place(third, "a.b", 1) == (True, 0)


async def test_rate_gives_turns_that_are_spread_evenly(queue: EventQueue) -> None:
    await queue.accept("e1", "e2", "e3")
    claims = queue.worker()
    first, second, third = (await claims.take(3, urgent=0)).claims
    assert await claims.acquire_place(first, "a.slow", None, 1 / 60) == (True, 0)
    has_place, wait = await claims.acquire_place(second, "a.slow", None, 1 / 60)
    assert (has_place, 50 < wait <= 63) == (False, True)
    assert (await claims.acquire_place(first, "a.quick", 1, 2))[0]
    assert await claims.acquire_place(second, "a.quick", 1, 2) == (False, 0)  # No place: no turn is used up.
    await claims.release_place(first, "a.quick")
    has_place, wait = await claims.acquire_place(third, "a.quick", 1, 2)
    assert (has_place, 0 <= wait <= 0.525) == (True, True)
    assert 0 < queue.redis.pttl("credhook:credhook:rate:a.slow:bucket") <= 63_000


async def test_event_that_is_done_keeps_no_error(queue: EventQueue) -> None:
    await queue.accept("e1")
    claims = queue.worker()
    failed = Settlement(State.WAITING, "t.f: \udc80 closed", schedules={"t.f": (1, 0.0, False)})
    assert (await claims.settle(await queue.take_one(), failed))[0]
    assert queue.record("e1")["error"] == "t.f: ? closed"
    claim = await queue.take_one()
    queue.redis.hset(EVENT + "e1", mapping={"only": "t.f", "seen": 1})
    assert (await claims.settle(claim, DONE))[0]
    await claims.record(claim, "t.f", "done", ("t.g",))  # A thread of it that was late.
    assert queue.record("e1").keys() == {"type", "resource", "state", "received", "settled", "h:t.f", "p:t.f"}
    assert queue.record("e1")["p:t.f"] == "2 0"


async def test_foreign_job_is_refused_alone(queue: EventQueue) -> None:
    await queue.accept("e1")
    for name in (b"\xff\xfe", job_id("other").encode()):
        queue.redis.copy("rq:job:" + job_id("e1"), b"rq:job:" + name)  # type: ignore[arg-type]
        queue.redis.lpush(INDEX.jobs, name, "expired")
    with capture_logs() as logs:
        assert [claim.event_id for claim in await queue.take()] == ["e1"]
    assert (logs[0]["event"], logs[0]["count"]) == ("jobs_refused", 1)
    assert logs[0]["hint"].startswith("another client of this Redis enqueues jobs in our queue; give it a queue of its")
    assert queue.redis.exists(b"credhook:credhook:refused:\xff\xfe")


async def test_due_retry_of_an_erased_event_opens_nothing(queue: EventQueue) -> None:
    queue.redis.hset("rq:job:" + job_id("gone"), "data", "x")
    queue.redis.zadd(INDEX.scheduled, {job_id("gone"): 1})
    assert await queue.take() == []
    assert not queue.redis.exists(INDEX.open, INDEX.scheduled, INDEX.jobs, "rq:job:" + job_id("gone"))


async def test_foreign_job_in_the_schedule_is_refused_when_due(queue: EventQueue) -> None:
    await queue.accept("e1")
    queue.redis.hset("rq:job:foreign", "data", "x")
    queue.redis.zadd(INDEX.scheduled, {"foreign": 1})
    assert (await queue.take_one()).event_id == "e1"
    assert queue.redis.exists(INDEX.refused + "foreign")
    assert not queue.redis.exists("rq:job:foreign", INDEX.scheduled, INDEX.jobs)


@pytest.mark.parametrize("updated_at", [datetime.min, None, "yesterday"])  # noqa: DTZ901  As a platform may write it.
def test_impossible_time_counts_as_the_earliest(updated_at: datetime | str | None) -> None:
    assert state_of(COMPLETED, updated_at) == (3, 0)


def test_sweeper_requeues_only_events_without_a_job(queue: EventQueue) -> None:
    now = queue.redis.time()[0] * 1_000
    queued = [f"m{number}" for number in range(30)]
    queue.plant(*queued, moved=now - 100_000)
    queue.redis.zadd(INDEX.open, dict.fromkeys(queued, now - 100_000))  # They came together.
    queue.plant("handed back", moved=now)
    queue.push_job("handed back", *queued)
    queue.plant("orphan", moved=now - 200_000)
    queue.redis.set("credhook:credhook:unfinished", "of a script that was cut")
    queue.redis.lpush(INDEX.jobs, "xylophone-7")  # Another program's: it looks like ours, with an id in hexadecimal.
    assert queue.sweep(head=20) == 1
    assert not queue.redis.exists("credhook:credhook:unfinished")
    jobs: Any = queue.redis.lrange(INDEX.jobs, 0, -1)
    assert len(jobs) == len(set(jobs)) == 33


def test_orphan_behind_a_page_of_scheduled_events_is_requeued(queue: EventQueue) -> None:
    waiting = [f"m{number}" for number in range(15)]
    queue.plant(*waiting, moved=0, state="waiting")
    queue.redis.zadd(INDEX.scheduled, {job_id(name): queue.redis.time()[0] + 3_600 for name in waiting})
    queue.plant("orphan", moved=20_000)
    assert queue.sweep(page=10) == 1
    assert queue.redis.lrange(INDEX.jobs, 0, -1) == [job_id("orphan").encode()]


def test_sweeper_requeues_orphans_in_their_order(queue: EventQueue) -> None:
    later = int(queue.redis.time()[0]) * 1_000 + 86_400_000
    queue.plant("z1", "z2", moved=1, state="waiting", due=later)
    good = [f"m{number}" for number in range(7)]
    queue.plant(*good, moved=10)
    queue.redis.hdel(EVENT + good.pop(2), "type")  # It is set aside.
    sweeper, before = queue.sweeper(page=2), REGISTRY.get_sample_value("credhook_events_requeued_total")
    assert [sweeper.run() for _ in range(5)] == [0, 2, 1, 2, 1]
    assert REGISTRY.get_sample_value("credhook_events_requeued_total") == (before or 0) + 6
    assert queue.redis.lrange(INDEX.jobs, 0, -1) == [job_id(one).encode() for one in good]


def test_settled_events_are_forgotten_after_the_retention(queue: EventQueue) -> None:
    now = queue.redis.time()[0] * 1_000
    lists = {"dead": INDEX.dead, "quarantined": INDEX.quarantined, "unreadable": INDEX.unreadable}
    lists["unhandled"] = INDEX.unhandled + COMPLETED
    queue.redis.hset(EVENT + "moved", "state", "done")
    queue.redis.zadd(INDEX.unreadable, {f"old{number}": 1 for number in range(5_001)})  # More than one step removes.
    queue.redis.zadd(INDEX.leases, {"old": now - 3_601_000})
    queue.redis.zadd(INDEX.started, {"old": now // 1_000 - 601, "young": now // 1_000 - 590})
    for state, key in lists.items():
        queue.redis.hset(EVENT + state, "state", state)
        queue.redis.zadd(key, {"old": now - 3_601_000, state: now - 3_500_000})
        if state != "unreadable":  # That one may have been repaired by hand.
            queue.redis.zadd(key, {"moved": now, "gone": now})
    for key in (INDEX.open, INDEX.delayed):
        queue.redis.zadd(key, {"torn": now - 10_000})
    queue.sweep()
    assert not queue.redis.exists(INDEX.open, INDEX.delayed, INDEX.leases)
    assert queue.redis.zrange(INDEX.started, 0, -1) == [b"young"]
    assert {key: queue.redis.zrange(key, 0, -1) for key in lists.values()} == {
        key: [state.encode()] for state, key in lists.items()
    }


async def test_blocked_event_is_not_an_orphan(queue: EventQueue) -> None:
    await queue.accept("e1/r", "e2/r")
    assert [claim.event_id for claim in await queue.take()] == ["e1"]
    assert queue.redis.zscore(INDEX.delayed, "e2")  # Its age counts, although it is in no queue.
    queue.redis.zadd(INDEX.open, {"e2": 1})
    assert queue.sweep() == 0
    assert not queue.redis.exists(INDEX.jobs)
    queue.redis.hdel(INDEX.locks, "r")
    assert queue.sweep() == 1


@pytest.mark.parametrize(("lapses", "early", "later"), [(2, -60, 1), (3, 0, 6), (5, 6, 21), (40, 300, 601)])
async def test_event_that_kills_workers_comes_late(queue: EventQueue, lapses: int, early: int, later: int) -> None:
    late = next(f"m{number}" for number in range(100) if crc32(f"m{number}".encode()) / 2**32 > 0.9)
    await queue.accept(f"{late}/r")
    await queue.take_one()
    queue.lapse()
    queue.redis.hset(INDEX.locks, "r", f"{late} 1 {lapses} w")
    seconds, _ = queue.redis.time()
    for passed, put_back_now in ((early, 0), (later, 1)):
        queue.redis.zadd(INDEX.leases, {late: (seconds - passed) * 1_000})
        assert queue.sweep() == put_back_now


async def test_death_keeps_the_lapses_that_the_lock_counts(queue: EventQueue) -> None:
    await queue.accept("e1/r")
    claim = await queue.take_one("dies")
    queue.redis.hset(INDEX.locks, "r", f"e1 {claim.fence} 3 dies")
    assert queue.die("dies") == 1
    assert queue.record("e1")["lapses"] == "3"


async def test_event_alone_at_its_workers_death_is_isolated(queue: EventQueue) -> None:
    await queue.accept("bad")
    claims = queue.worker("w1")
    assert (await take_one(claims)).killed == 0
    assert [queue.die(name) for name in ("another", "w1", "w1")] == [0, 1, 0]
    queue.lapse()
    queue.sweep()
    await queue.accept("good")
    found = await claims.take(10, urgent=0)
    assert ([claim.event_id for claim in found.claims], found.poison_candidates) == (["good"], True)
    await queue.accept("better")
    alone = await claims.take(10, urgent=0, candidates=Candidates.ONLY)
    assert [(claim.event_id, claim.killed, claim.lapses) for claim in alone.claims] == [("bad", 1, 1)]
    assert not alone.poison_candidates
    assert queue.die("w1") == 2


async def test_events_that_died_together_are_isolated_after_two_deaths(queue: EventQueue) -> None:
    await queue.accept("m1", "m2", "m3")
    for name in ("w1", "w2"):
        assert [claim.lapses for claim in await queue.take(name)] == [0, 0, 0]
        assert queue.die(name) == 3
        queue.lapse()
        queue.sweep()
    assert await queue.take("w3") == []
    seen = set()
    for _ in range(3):
        (claim,) = await queue.take("w3", candidates=Candidates.ONLY)
        assert (claim.lapses, claim.killed) == (0, 0)
        await queue.worker("w3").settle(claim, DONE)
        seen.add(claim.event_id)
        assert not {"deaths", "killed", "lapses"} & queue.record(claim.event_id).keys()
    assert seen == {"m1", "m2", "m3"}


async def test_death_from_outside_counts_against_no_event(queue: EventQueue) -> None:
    await queue.accept("m1")
    for lapses in range(3):
        claim = await queue.take_one(f"w{lapses}")
        assert (claim.lapses, claim.killed) == (lapses, 0)
        assert queue.die(f"w{lapses}", own_fault=False) == 1
        queue.redis.delete(INDEX.leases)  # So that no delay applies.
        queue.lapse()
        queue.sweep()


async def test_death_counts_for_a_lapsed_event_whose_resource_goes_on(
    queue: EventQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("credhook.worker.queue.leases.PAGE", 80)
    others = [f"m{number}" for number in range(199)]  # One script notes 200 deaths.
    await queue.accept("culprit/r", "innocent/q", *others)
    assert len((await queue.worker("dies").take(201, urgent=0)).claims) == 201
    queue.lapse("culprit")
    await queue.accept("next/r")
    following = await queue.take_one("other")
    assert following.event_id == "next"
    assert [queue.die("dies"), queue.die("dies")] == [201, 0]
    for event_id in ("culprit", "innocent", *others):
        kept = queue.record(event_id)
        assert (kept.get("deaths"), kept.get("killed"), kept["lapses"], kept.get("holder")) == ("1", None, "0", None)
    assert await queue.worker("other").renew([following]) == []


async def test_death_does_not_count_for_an_event_that_was_taken_again(queue: EventQueue) -> None:
    await queue.accept("e1/r")
    await queue.take_one("dies")
    queue.lapse("e1")
    await queue.accept("e2/r")
    other = queue.worker("other")
    await other.settle(await take_one(other), DONE)
    queue.push_job("e1")
    again = await take_one(other)
    assert (again.event_id, again.lapses) == ("e1", 1)
    assert queue.die("dies") == 0
    assert await other.settle(again, DONE) == (True, None)
    assert not {"fence", "holder", "deaths", "killed"} & queue.record("e1").keys()


async def test_event_that_killed_its_worker_comes_before_later_events(queue: EventQueue) -> None:
    await queue.accept("e1/r")
    await queue.take_one("dies")
    assert reclaim(store_on(queue.redis), "dies", "own")
    await queue.accept("e2/r")
    assert not await queue.take("busy")
    (first,) = await queue.take("idle", candidates=Candidates.ONLY)
    assert (first.event_id, first.killed, first.lapses) == ("e1", 1, 1)
    assert await queue.follow(first, "idle") == "e2"


def test_reclaim_returns_false_while_redis_is_away() -> None:
    with open_redis_sync("redis://127.0.0.1:1/0", **BRIEFLY) as nobody:
        assert not reclaim(store_on(nobody), "w1", "own")


async def test_lock_of_a_dead_worker_ends_with_its_lease(queue: EventQueue) -> None:
    await queue.accept("e1/r", "e2/r")
    await queue.take_one("dies")
    queue.lapse("e1")
    assert queue.die("dies") == 1
    assert (await queue.take_one()).event_id == "e2"


async def broken_settlement(queue: EventQueue, settlement: Settlement, number: int) -> tuple[Claims, Claim]:
    """Break off the settlement of e1, four of whose claims have lapsed, at that command."""
    await queue.accept("e1/r")
    queue.redis.hset(EVENT + "e1", mapping={"fence": 5, "lapses": 4, "seen": 1})
    store = FailingStore(queue.redis)
    claims = Claims(store.for_async_code(), lease=60.0, worker="stalled")
    claim = await take_one(claims)
    store.plans["write"] = Sabotage(number, "ERR broken")
    with suppress(exceptions.RedisError):
        await claims.settle(claim, settlement)
    return claims, claim


async def test_death_whose_note_was_cut_counts_once(queue: EventQueue) -> None:
    for number in range(8, 36):
        await queue.accept(one := f"e{number}")
        await queue.take_one("dies")
        store = FailingStore(queue.redis, {"reclaim": Sabotage(number, POWER_CUT)})
        with suppress(exceptions.ResponseError):
            store.run("reclaim", ["dies", "1", json.dumps(WORKER_DIED.described()), 3_600, 1, one])
        queue.die("dies")
        assert queue.record(one).get("killed", "1") == "1"
        assert "c:worker" not in queue.record(one) or queue.redis.exists(INDEX.cause + WORKER_DIED.cause)


@pytest.mark.parametrize("state", [State.WAITING, State.ACCEPTED, None])
async def test_open_event_lasts_after_a_cut_settlement(queue: EventQueue, state: State | None) -> None:
    await queue.accept("e1")
    claim = await queue.take_one()
    queue.redis.expire(EVENT + "e1", 100)
    if state:
        await queue.worker().settle(claim, Settlement(state, "no", wait=1.0))
    else:
        queue.lapse()
        assert queue.sweep() == 1
    assert queue.redis.ttl(EVENT + "e1") == -1
    assert not queue.redis.exists(INDEX.started)


@pytest.mark.parametrize("state", [one for one in State if one not in {State.ACCEPTED, State.WAITING}])
async def test_cut_settlement_is_completed(queue: EventQueue, state: State) -> None:
    await queue.accept("e1")
    await queue.take_one()
    queue.redis.hset(EVENT + "e1", "state", state)
    queue.lapse()
    queue.sweep()
    assert disagreements(queue.redis) == []
    assert not queue.redis.exists(INDEX.leases, INDEX.locks, INDEX.started, "rq:job:" + job_id("e1"))


@pytest.mark.parametrize("number", COMMANDS)
async def test_broken_settlement_does_not_undo_a_replay(queue: EventQueue, number: int) -> None:
    dead = Settlement(State.DEAD, "no")
    stalled, claim = await broken_settlement(queue, dead, number)
    if queue.record("e1")["state"] != "dead":
        assert number < 10
        return
    Replay(store_on(queue.redis))([Settled("e1", State.DEAD)])
    replayed = queue.record("e1")
    assert "seen" not in replayed  # Its data may have come back.
    assert not queue.redis.exists(INDEX.locks, INDEX.leases)
    queue.redis.lrem(INDEX.jobs, 0, job_id("e1"))
    await queue.accept("e2/r")
    other = queue.worker("other")
    queue.lapse("e1")
    await other.settle(await take_one(other), DONE)
    assert int(queue.record("e1")["fence"]) >= int(replayed["fence"])
    assert await stalled.settle(claim, dead) == (False, None)
    queue.push_job("e1")
    again = await take_one(other)
    assert (again.event_id, again.lapses) == ("e1", 0)


@pytest.mark.parametrize("number", COMMANDS)
async def test_broken_settlement_counts_no_lapse(queue: EventQueue, number: int) -> None:
    await broken_settlement(queue, Settlement(State.WAITING, "no", wait=0.0), number)
    before = queue.record("e1")
    if before["state"] != "waiting":
        assert number < 10
        return
    queue.redis.delete(INDEX.scheduled)
    await queue.accept("e2/r")
    queue.lapse("e1")
    assert (await queue.take_one("other")).event_id == "e2"
    after = queue.record("e1")
    assert (after["fence"], after["lapses"]) == (before["fence"], before["lapses"])


def test_operation_encodes_its_name_and_arguments_for_redis() -> None:
    written: Any = operation("record", "msg_1", 7, {}, {"who": "ä"}, "a \udc80 b")
    assert written == ("record", 5, "msg_1", 7, b"", b'{"who": "\xc3\xa4"}', b"a ? b")
