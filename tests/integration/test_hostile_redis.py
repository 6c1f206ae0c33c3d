"""A Redis that is shared with somebody who means harm: no key of theirs stops the intake or the fleet for long."""

import asyncio
from typing import Any

from accepting import inbox_on, record
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis_keys import EVENT, job_id
from structlog.testing import capture_logs

from credhook.events import Event
from credhook.receiver.inbox import Outcome
from credhook.store import LONGEST_LOCK, Keys, State
from credhook.worker.queue import reclaim
from credhook.worker.queue.claim import Settlement, Worker
from credhook.worker.queue.claims import Claims
from credhook.worker.queue.reconcile import MOST, Reconciler

COMPLETED = "openid4vc.issuance.completed"
INDEX = Keys("credhook")


async def accept(redis: AsyncRedis, *ids: str, resource: str = "") -> list[Outcome]:
    async with inbox_on(redis) as inbox:
        return await asyncio.gather(*(inbox.accept(one, Event(COMPLETED, resource or f"r-{one}")) for one in ids))


def worker(redis: AsyncRedis) -> Claims:
    return Claims(redis, queue="credhook", lease=60.0, retention=3_600, worker=Worker("w", "w"))


def reconciler(redis: Redis, name: str = "n") -> Reconciler:
    return Reconciler(redis, queue="credhook", name=name, interval=1, retention=3_600)


def orphan(redis: Redis, webhook_id: str) -> None:
    redis.delete(INDEX.jobs)
    redis.zadd(INDEX.open, {webhook_id: 2})


async def test_refusing_strangers_jobs_costs_the_same_however_long_the_queue_is(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    """A walk through the queue for each of them kept Redis busy for fifteen seconds at a time."""
    planted = [f"f{number}" for number in range(2_000)]
    pipeline = redis_client.pipeline(transaction=False)
    for job in planted:
        pipeline.hset(f"rq:job:{job}", "data", "x")
    pipeline.rpush(INDEX.jobs, *planted)
    pipeline.execute()
    await accept(async_redis, "good")
    claims, looks = worker(async_redis), 0
    taken: list[str] = []
    redis_client.config_resetstat()
    while not taken:
        taken = [claim.event_id for claim in (await claims.take(100, urgent=50)).claims]
        looks += 1
    assert taken == ["good"]
    stats: Any = redis_client.info("commandstats")
    assert looks <= 3
    # One step of each is all that is asked of a list: its own entry stands at the head.
    assert stats["cmdstat_lrem"]["calls"] == len(planted)
    assert redis_client.llen(INDEX.intermediate) == 0


async def test_a_large_job_that_the_queue_names_again_and_again_is_not_read_again_and_again(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    redis_client.hset("rq:job:big", "data", "x" * 1_000_000)
    redis_client.rpush(INDEX.jobs, *["big"] * 300)
    await accept(async_redis, "good")
    redis_client.config_resetstat()
    claims = worker(async_redis)
    with capture_logs() as logs:
        looks = [[claim.event_id for claim in (await claims.take(100, urgent=50)).claims] for _ in range(2)]
    assert looks == [[], ["good"]]  # The first ends where it meets the large one, which is gone for the second.
    stats: Any = redis_client.info("stats")
    assert stats["total_net_output_bytes"] < 1_000_000
    assert redis_client.llen(INDEX.intermediate) == 0
    assert [(one["count"], one["jobs"]) for one in logs if one["event"] == "jobs_refused"] == [(1, ["big"])]


async def test_a_job_with_an_endless_name_is_set_aside_by_a_digest_of_it(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    name = bytes(range(128, 256)) * 160
    redis_client.hset(b"rq:job:" + name, "data", "x")
    redis_client.rpush(INDEX.jobs, *[name] * 50)
    await accept(async_redis, "good")
    with capture_logs() as logs:
        taken = await worker(async_redis).take(100, urgent=50)
    assert [claim.event_id for claim in taken.claims] == ["good"]
    assert not redis_client.exists(b"rq:job:" + name)
    (aside,) = redis_client.scan_iter(INDEX.refused + "*")
    assert redis_client.ttl(aside) > 0
    assert len(str(logs)) < 10_000


async def test_a_lock_without_an_end_does_not_keep_a_resource(async_redis: AsyncRedis, redis_client: Redis) -> None:
    far = int(redis_client.time()[0]) * 1_000 + 10 * LONGEST_LOCK
    for lock, ends in (("nobody 1 1 w", 0), ("nobody 1 1 w", far), ("nobody", far), (b"\xff 1 1 w", far)):
        redis_client.flushall()
        redis_client.hset(INDEX.locks, "r", lock)
        redis_client.zadd(INDEX.leases, {"nobody": ends})
        await accept(async_redis, "m1", resource="r")
        claims = worker(async_redis)
        (claim,) = (await claims.take(10, urgent=5)).claims
        assert await claims.renew([claim]) == []
        assert await claims.settle(claim, Settlement(State.DONE)) == (True, None)
        assert record(redis_client, "m1")["state"] == "done"


async def test_neither_does_it_keep_an_event_from_being_put_back(async_redis: AsyncRedis, redis_client: Redis) -> None:
    await accept(async_redis, "m1", resource="r")
    orphan(redis_client, "m1")
    redis_client.hset(INDEX.locks, "r", "nobody 1 1 w")
    assert reconciler(redis_client).run() == 1


async def test_a_leader_that_would_lead_for_ever_is_replaced_and_named(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, "m1")
    orphan(redis_client, "m1")
    redis_client.set(INDEX.leader, "nobody")
    with capture_logs() as logs:
        assert reconciler(redis_client).run() == 1
    assert [one["key"] for one in logs if one["event"] == "leader_replaced"] == [INDEX.leader]
    assert redis_client.pttl(INDEX.leader) > 0
    assert reconciler(redis_client, "another").run() == 0  # An honest leader stays.


async def test_events_that_stay_where_they_are_do_not_hide_those_behind_them(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    later = int(redis_client.time()[0]) * 1_000 + 86_400_000
    pipeline = redis_client.pipeline(transaction=False)
    for number in range(MOST):
        fields: Any = {"state": "waiting", "type": COMPLETED, "resource": "r", "received": 1, "due": later}
        pipeline.hset(f"{EVENT}z{number}", mapping=fields)
    pipeline.zadd(INDEX.open, {f"z{number}": 1 for number in range(MOST)})
    pipeline.execute()
    await accept(async_redis, "good")
    orphan(redis_client, "good")
    leader = reconciler(redis_client)
    assert [leader.run(), leader.run()] == [0, 1]
    assert redis_client.lrange(INDEX.jobs, 0, -1) == [job_id("good").encode()]


async def test_a_retry_that_is_due_in_a_thousand_years_cannot_be_read(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, "m1")
    redis_client.hset(EVENT + "m1", mapping={"state": "waiting", "due": 33_000_000_000_000})
    orphan(redis_client, "m1")
    reconciler(redis_client).run()
    assert record(redis_client, "m1")["state"] == "unreadable"


async def test_what_stands_in_the_way_of_a_delivery_is_replaced_or_passed_over(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    for key in ("rq:job:" + job_id("m1"), "rq:queues"):
        redis_client.flushall()
        redis_client.set(key, "x")
        assert await accept(async_redis, "m1", "m2") == [Outcome.ACCEPTED] * 2
        assert redis_client.llen(INDEX.jobs) == 2


async def test_a_death_costs_the_same_however_many_leases_somebody_has_made_up(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, "m1")
    await worker(async_redis).take(1, urgent=0)
    far = int(redis_client.time()[0]) * 1_000 + 100 * LONGEST_LOCK
    redis_client.zadd(INDEX.leases, {f"z{number}": far for number in range(5_000)})
    redis_client.config_resetstat()
    script = redis_client.register_script(reclaim.RECLAIM)
    assert len(script(keys=[INDEX.prefix], args=reclaim.arguments("w", "1", retention=3_600))) == 1
    stats: Any = redis_client.info("commandstats")
    assert stats["cmdstat_hget"]["calls"] < 10
