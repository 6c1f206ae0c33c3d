"""Who may do what to an event at which moment: fences, leases, the queue's order, and how a death is counted."""

import asyncio
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest
from accepting import record
from claims import COMPLETED, INDEX, accept, died, lapse, sweeper, take_one, worker
from click.testing import CliRunner
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MasterDownError, NoPermissionError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis_keys import EVENT, job_id
from structlog.testing import capture_logs
from waiting import until_async

from credhook.store import State
from credhook.worker.commands.events import command as history
from credhook.worker.queue.claim import Claim, Settlement
from credhook.worker.queue.group_commit import GroupCommit, Operation, is_unwell
from credhook.worker.queue.leases import Leases
from credhook.worker.queue.sweeper import HEAD, MOST


def holder_of(redis: Redis, resource: str) -> str:
    lock: Any = redis.hget(INDEX.locks, resource)
    return str(lock.decode().split(" ")[0])


# fences


async def test_a_lapsed_claim_is_not_renewed_over_the_resources_next_holder(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("e1", "r"), ("e2", "r"))
    stalled, other = worker(async_redis, "stalled"), worker(async_redis, "other")
    first = await take_one(stalled)
    lapse(redis_client)
    second = await take_one(other)
    assert second.event_id == "e2"
    assert await stalled.renew([first]) == [first]
    assert holder_of(redis_client, "r") == "e2"
    assert await other.renew([second]) == []


async def test_whoever_held_an_event_before_its_erasure_cannot_settle_the_one_that_came_after(
    async_redis: AsyncRedis, redis_client: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    await accept(async_redis, ("m1", "r"))
    stalled = worker(async_redis, "stalled")
    old = await take_one(stalled)
    assert CliRunner().invoke(history.events, ["erase", "--id", "m1", "--yes"]).exit_code == 0
    await accept(async_redis, ("m1", "r"))
    new = await take_one(worker(async_redis))
    assert new.fence > old.fence
    assert await stalled.settle(old, Settlement(State.DEAD, "no")) == (False, None)
    assert record(redis_client, "m1")["state"] == "accepted"


async def test_what_was_done_by_one_that_lost_its_lease_is_not_done_again(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("m1", "r"))
    stalled = worker(async_redis, "stalled")
    old = await take_one(stalled)
    lapse(redis_client)
    assert sweeper(redis_client).run() == 1
    await take_one(worker(async_redis))
    assert await stalled.settle(old, Settlement(State.DONE, records={"a.b": "done"})) == (False, None)
    assert record(redis_client, "m1")["h:a.b"] == "done"
    assert record(redis_client, "m1")["state"] == "accepted"


async def test_a_claim_that_lapsed_before_the_resources_next_event_was_taken_is_remembered(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("e1", "r"), ("e2", "r"))
    stalled, other = worker(async_redis, "stalled"), worker(async_redis, "other")
    first = await take_one(stalled)
    lapse(redis_client)
    second = await take_one(other)
    assert (await other.settle(second, Settlement(State.DONE))) == (True, None)
    assert sweeper(redis_client).run() == 1
    again = await take_one(other)
    assert (again.event_id, again.attempt, again.first) == ("e1", 2, False)
    assert again.fence > first.fence
    assert await stalled.renew([first]) == [first]
    assert await stalled.settle(first, Settlement(State.DONE)) == (False, None)
    assert await other.settle(again, Settlement(State.DONE)) == (True, None)
    assert not redis_client.exists(INDEX.locks, INDEX.leases, INDEX.open)


async def test_whose_lock_was_lost_is_told_when_it_settles_and_no_other_has_the_event_meanwhile(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("e1", "r"))
    claims = worker(async_redis)
    claim = await take_one(claims)
    redis_client.delete(INDEX.locks)
    redis_client.zadd(INDEX.open, {"e1": 1})
    assert sweeper(redis_client).run() == 0
    assert await claims.settle(claim, Settlement(State.DONE, records={"a.b": "done"})) == (False, None)
    lapse(redis_client)
    assert sweeper(redis_client).run() == 1
    assert (await take_one(claims)).ended == {"a.b": "done"}


async def test_a_late_renewal_does_not_take_what_waits_for_its_time(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("m1", "r"))
    claims = worker(async_redis)
    claim = await take_one(claims)
    await claims.settle(claim, Settlement(State.WAITING, "no", wait=0.0))
    assert await claims.renew([claim]) == [claim]
    assert not redis_client.zcard(INDEX.leases)


async def test_a_job_that_comes_before_its_events_time_is_not_taken(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("m1", "r"))
    claims = worker(async_redis)
    await claims.settle(await take_one(claims), Settlement(State.WAITING, "no", wait=60.0))
    redis_client.rpush(INDEX.jobs, job_id("m1"))
    assert (await claims.take(10, urgent=0)).claims == ()
    assert record(redis_client, "m1")["state"] == "waiting"


async def test_what_waits_for_its_time_is_not_put_back_before_it_although_rq_has_lost_it(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("m1", "r"))
    claims = worker(async_redis)
    await claims.settle(await take_one(claims), Settlement(State.WAITING, "no", wait=60.0))
    redis_client.delete(INDEX.scheduled)
    lapse(redis_client)
    assert sweeper(redis_client).run() == 0
    redis_client.hset(EVENT + "m1", "due", 1)
    assert sweeper(redis_client).run() == 1


async def test_what_has_outlived_two_of_its_workers_is_not_put_back_at_once(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    late = next(f"m{number}" for number in range(100) if crc32(f"m{number}".encode()) / 2**32 > 0.9)
    await accept(async_redis, (late, "r"))
    await take_one(worker(async_redis))
    lapse(redis_client)
    redis_client.hset(INDEX.locks, "r", f"{late} 1 3 w")
    seconds, _ = redis_client.time()
    redis_client.zadd(INDEX.leases, {late: seconds * 1_000})
    assert sweeper(redis_client).run() == 0
    redis_client.zadd(INDEX.leases, {late: (seconds - 6) * 1_000})
    assert sweeper(redis_client).run() == 1


async def test_what_is_handed_back_comes_before_all_that_wait(async_redis: AsyncRedis) -> None:
    await accept(async_redis, ("m1", "r1"), ("m2", "r2"), ("m3", "r3"))
    claims = worker(async_redis)
    first = await take_one(claims)
    await claims.settle(first, Settlement(State.ACCEPTED, spend=False))
    again = await take_one(claims)
    assert (again.event_id, again.attempt) == (first.event_id, 1)


async def test_an_erasure_leaves_the_resource_to_the_event_that_has_it(
    async_redis: AsyncRedis, redis_client: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    await accept(async_redis, ("e1", "r"), ("e2", "r"), ("e3", "r"))
    claims = worker(async_redis)
    first = await take_one(claims)
    assert CliRunner().invoke(history.events, ["erase", "--id", "e2", "--yes"]).stdout == "erased 1\n"
    assert holder_of(redis_client, "r") == "e1"
    assert not (await claims.take(10, urgent=0)).claims
    _, following = await claims.settle(first, Settlement(State.DONE), follow=True)
    assert following is not None
    assert following.event_id == "e3"


# leases


class Answers:
    """In place of claims: renews, or says that Redis is away."""

    lease = 10.0

    def __init__(self) -> None:
        self.away = False
        self.now = 0.0
        self.takes = 0.0

    async def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        self.now += self.takes
        if self.away:
            raise RedisConnectionError
        return []


async def test_a_lease_counts_from_when_its_renewal_was_asked_for_and_is_lost_with_redis_away(
    async_redis: AsyncRedis,
) -> None:
    await accept(async_redis, ("m1", "r1"))
    claim = await take_one(worker(async_redis))
    answers = Answers()
    leases, lost = Leases(answers, clock=lambda: answers.now), []  # type: ignore[arg-type]
    leases.hold(claim, lambda: lost.append(claim))
    answers.now, answers.takes = 8.0, 4.0
    await leases.renew()  # Asked for at 8, answered at 12: it lasts until 18.
    answers.away, answers.now, answers.takes = True, 17.5, 0.0
    await leases.renew()
    assert not lost
    answers.now = 18.0
    await leases.renew()
    assert lost == [claim]


async def test_a_full_redis_lets_leases_and_settlements_pass_and_marks_wait(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("m1", "r1"), ("m2", "r2"))
    claims = worker(async_redis)
    one, two = (await claims.take(2, urgent=0)).claims
    redis_client.config_set("maxmemory", 1)
    try:
        with capture_logs() as lines:
            marking = asyncio.create_task(claims.record(one, "a.b", "done"))
            await until_async(lambda: lines, what="the refusal of the mark")
        assert [line["event"] for line in lines] == ["ledger_unreachable"]
        assert await claims.renew([one, two]) == []
        assert await claims.settle(two, Settlement(State.DONE)) == (True, None)
    finally:
        redis_client.config_set("maxmemory", 0)
    await asyncio.wait_for(marking, 60)
    assert record(redis_client, "m1")["h:a.b"] == "done"
    assert record(redis_client, "m2")["state"] == "done"


async def test_a_redis_that_stays_away_is_asked_once_a_second_and_settlements_go_first() -> None:
    waits: list[float] = []
    groups: list[list[Operation]] = []

    async def run(operations: Sequence[Operation]) -> list[Any]:
        groups.append(list(operations))
        if len(groups) < 9:
            raise OutOfMemoryError("OOM command not allowed")
        return [ResponseError("WRONGTYPE no"), *range(1, len(operations))]

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    commit = GroupCommit(run, sleep=sleep)
    writes = [commit.write((name,), first=name != "mark") for name in ("mark", "refused", "settle")]
    mark, refused, settled = await asyncio.gather(*writes, return_exceptions=True)
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert groups[-1] == [("refused",), ("settle",), ("mark",)]
    assert isinstance(refused, ResponseError)
    assert (settled, mark) == (1, 2)


@pytest.mark.parametrize(
    "said",
    [
        OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        ResponseError(
            "Error running script: @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'."
        ),
        ReadOnlyError("You can't write against a read only replica."),
        NoPermissionError("ACL failure in script: User w has no permissions to run the 'hset' command"),
        MasterDownError("Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
        RedisConnectionError("closed"),
    ],
)
def test_what_redis_says_that_is_unwell_is_known_from_redis_7_on_too(said: Exception) -> None:
    assert is_unwell(said)
    assert not is_unwell(ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"))


# the sweeper


async def test_behind_a_long_queue_only_what_is_not_in_it_is_put_back(redis_client: Redis) -> None:
    now = redis_client.time()[0] * 1_000
    pipeline = redis_client.pipeline(transaction=False)
    for number in range(HEAD + 100):
        webhook_id = f"m{number}"
        fields: dict[Any, Any] = {"state": "accepted", "type": COMPLETED, "resource": webhook_id, "received": now}
        pipeline.hset(EVENT + webhook_id, mapping=fields)
        pipeline.zadd(INDEX.open, {webhook_id: now - 100_000 + number})
        pipeline.rpush(INDEX.jobs, job_id(f"{webhook_id}"))
    pipeline.hset(EVENT + "orphan", mapping={"state": "accepted", "type": COMPLETED, "resource": "r", "received": now})
    pipeline.zadd(INDEX.open, {"orphan": now - 200_000})
    pipeline.execute()
    assert sweeper(redis_client).run() == 1
    jobs: Any = redis_client.lrange(INDEX.jobs, 0, -1)
    assert len(jobs) == len(set(jobs)) == HEAD + 101


async def test_what_is_settled_is_forgotten_after_the_retention_time(redis_client: Redis) -> None:
    now = redis_client.time()[0] * 1_000
    for key in (INDEX.dead, INDEX.quarantined, INDEX.unreadable):
        redis_client.zadd(key, {"old": now - 3_601_000, "young": now - 3_500_000})
    sweeper(redis_client).run()
    for key in (INDEX.dead, INDEX.quarantined, INDEX.unreadable):
        assert redis_client.zrange(key, 0, -1) == [b"young"]


async def test_an_event_behind_another_of_its_resource_is_at_home(async_redis: AsyncRedis, redis_client: Redis) -> None:
    await accept(async_redis, ("e1", "r"), ("e2", "r"))
    claims = worker(async_redis)
    assert [claim.event_id for claim in (await claims.take(10, urgent=0)).claims] == ["e1"]
    redis_client.zadd(INDEX.open, {"e2": 1})
    assert sweeper(redis_client).run() == 0
    assert not redis_client.exists(INDEX.jobs)
    redis_client.hdel(INDEX.locks, "r")
    assert sweeper(redis_client).run() == 1


async def test_events_that_stay_where_they_are_do_not_hide_those_behind_them(redis_client: Redis) -> None:
    pipeline = redis_client.pipeline(transaction=False)
    later = int(redis_client.time()[0]) * 1_000 + 86_400_000
    for number in range(MOST):
        fields: Any = {"state": "waiting", "type": COMPLETED, "resource": "r", "received": 1, "due": later}
        pipeline.hset(f"{EVENT}z{number}", mapping=fields)
    pipeline.zadd(INDEX.open, {f"z{number}": 1 for number in range(MOST)})
    pipeline.hset(EVENT + "good", mapping={"state": "accepted", "type": COMPLETED, "resource": "g", "received": 1})
    pipeline.zadd(INDEX.open, {"good": 2})
    pipeline.execute()
    leader = sweeper(redis_client)
    assert [leader.run(), leader.run()] == [0, 1]
    assert redis_client.lrange(INDEX.jobs, 0, -1) == [job_id("good").encode()]


# deaths


async def put_back(redis: Redis) -> None:
    lapse(redis)
    sweeper(redis).run()


async def test_an_event_that_was_alone_in_a_process_that_died_is_known_and_made_alone_from_then_on(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("bad", "r1"))
    claims = worker(async_redis, "w1")
    assert (await take_one(claims)).killed == 0
    assert died(redis_client, "another") == 0
    assert died(redis_client, "w1") == 1
    assert died(redis_client, "w1") == 0
    await put_back(redis_client)
    await accept(async_redis, ("good", "r2"))
    busy = await claims.take(10, urgent=0)
    assert ([claim.event_id for claim in busy.claims], busy.poison_candidates) == (["good"], True)
    alone = await claims.take(10, urgent=0, idle=True)
    assert [(claim.event_id, claim.killed, claim.attempt) for claim in alone.claims] == [("bad", 1, 2)]
    assert not alone.poison_candidates
    assert died(redis_client, "w1") == 2  # Were it not alone, nobody could tell.


async def test_those_that_died_with_others_lose_no_attempt_and_are_made_alone_after_two_deaths(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("m1", "r1"), ("m2", "r2"), ("m3", "r3"))
    for name in ("w1", "w2"):
        taken = (await worker(async_redis, name).take(10, urgent=0, idle=True)).claims
        assert [claim.attempt for claim in taken] == [1, 1, 1]
        assert died(redis_client, name) == 3
        await put_back(redis_client)
    claims = worker(async_redis, "w3")
    assert (await claims.take(10, urgent=0)).claims == ()
    seen = set()
    for _ in range(3):
        (claim,) = (await claims.take(10, urgent=0, idle=True)).claims
        assert (claim.attempt, claim.killed) == (1, 0)
        await claims.settle(claim, Settlement(State.DONE))
        seen.add(claim.event_id)
        assert not {"deaths", "killed", "attempts"} & record(redis_client, claim.event_id).keys()
    assert seen == {"m1", "m2", "m3"}


async def test_a_process_that_was_killed_from_outside_speaks_against_nobody(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("m1", "r1"))
    for attempt in range(1, 4):
        claim = await take_one(worker(async_redis, f"w{attempt}"))
        assert (claim.attempt, claim.killed) == (attempt, 0)
        assert died(redis_client, f"w{attempt}", own_fault=False) == 1
        redis_client.delete(INDEX.leases)  # Whatever the delay after several deaths.
        await put_back(redis_client)
