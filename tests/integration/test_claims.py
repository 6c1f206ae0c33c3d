"""The scripts that move events, at the instants that no process can be made to meet: lapsed leases, lost replies."""

import asyncio
from datetime import datetime
from typing import Any

import pytest
from claims import COMPLETED, accept, worker
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ResponseError
from redis_keys import job_id
from waiting import until_async

from credhook.store import State
from credhook.worker.attempt.details import version
from credhook.worker.queue.claim import Settlement
from credhook.worker.queue.reclaim import PutBack
from credhook.worker.queue.sweeper import Sweeper


async def test_one_that_settles_after_its_lease_leaves_the_resource_to_whoever_has_it(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("e1", "r"))
    (first,) = (await worker(async_redis, "stalled").take(1, urgent=0)).claims
    redis_client.zadd("credhook:credhook:leases", {"e1": 1})
    await accept(async_redis, ("e2", "r"), ("e3", "r"))
    second = worker(async_redis, "second")
    (claim,) = (await second.take(10, urgent=0)).claims
    assert claim.event_id == "e2"
    assert await worker(async_redis, "stalled").settle(first, Settlement(State.DONE), follow=True) == (True, None)
    settled, following = await second.settle(claim, Settlement(State.DONE), follow=True)
    assert settled
    assert following is not None
    assert following.event_id == "e3"


async def test_what_cannot_be_written_fails_alone(async_redis: AsyncRedis, redis_client: Redis) -> None:
    await accept(async_redis, ("e1", "r1"), ("e2", "r2"), ("e3", "r3"))
    claims = worker(async_redis, "w")
    one, two, three = (await claims.take(10, urgent=0)).claims
    redis_client.delete("credhook:credhook:event:e2")
    redis_client.set("credhook:credhook:event:e2", "of another kind")
    settlement = Settlement(State.DONE)
    results = await asyncio.gather(
        *(claims.settle(each, settlement) for each in (one, two, three)), return_exceptions=True
    )
    assert results[0] == results[2] == (True, None)
    assert isinstance(results[1], ResponseError)


async def test_words_that_are_no_unicode_are_written_all_the_same(async_redis: AsyncRedis) -> None:
    await accept(async_redis, ("e1", "r1"))
    claims = worker(async_redis, "w")
    (claim,) = (await claims.take(1, urgent=0)).claims
    settled, _ = await claims.settle(claim, Settlement(State.DEAD, "t.f: \udc80 closed"))
    assert settled
    assert await async_redis.hget("credhook:credhook:event:e1", "error") == b"t.f: ? closed"


async def test_a_planted_job_with_an_odd_id_is_refused_and_stops_nobody(async_redis: AsyncRedis) -> None:
    await accept(async_redis, ("e1", "r1"))
    data: Any = await async_redis.hget("rq:job:" + job_id("e1"), "data")
    for name in (b"\xff\xfe", job_id("other").encode()):
        await async_redis.hset(b"rq:job:" + name, mapping={b"data": data})
        await async_redis.lpush("rq:queue:credhook", name)
    taken = await worker(async_redis, "w").take(10, urgent=0)
    assert [claim.event_id for claim in taken.claims] == ["e1"]
    assert await async_redis.exists(b"credhook:credhook:refused:\xff\xfe")


async def test_a_lost_reply_to_a_take_does_not_pass_for_data_that_was_seen(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("e1", "r1"))
    await worker(async_redis, "lost", lease=0.01).take(1, urgent=0)
    await async_redis.zadd("credhook:credhook:open", {"e1": 0})
    sweeper = Sweeper(redis_client, queue="credhook", name="n", interval=1, retention=3_600)
    await until_async(lambda: sweeper.run() == 1, what="the lapse of its lease")
    (claim,) = (await worker(async_redis, "w").take(1, urgent=0)).claims
    assert claim.attempt == 2
    assert not claim.seen
    assert not claim.first


async def test_takes_get_different_events(async_redis: AsyncRedis) -> None:
    await accept(async_redis, *((f"e{number}", f"r{number}") for number in range(6)))
    claims = worker(async_redis, "w")
    takes = await asyncio.gather(*(claims.take(number, urgent=0) for number in (2, 1, 2, 1)))
    taken = [claim.event_id for one in takes for claim in one.claims]
    assert sorted(taken) == [f"e{number}" for number in range(6)]


async def test_an_idle_worker_waits_no_longer_than_until_the_next_retry_is_due(async_redis: AsyncRedis) -> None:
    """Redis takes a thousandth of a second for no time-out, and waits for ever."""
    claims = worker(async_redis, "idle")
    for seconds in (0.001, 0.0004, 0.0):
        await claims.wait_for_job(seconds)


async def test_a_retry_that_was_due_is_claimed_even_if_the_clock_has_gone_back(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    """As then, the schedule has said that it is due, and the record says that it will be in a minute."""
    await accept(async_redis, ("e1", "r"))
    claims = worker(async_redis, "first")
    (claim,) = (await claims.take(1, urgent=0)).claims
    await claims.settle(claim, Settlement(State.WAITING, wait=60.0))
    assert not (await claims.take(1, urgent=0)).claims
    redis_client.zadd("rq:scheduled:credhook", {job_id("e1"): 1})
    (again,) = (await claims.take(1, urgent=0)).claims
    assert again.event_id == "e1"
    assert again._replace(now=0).age == 0


async def test_an_event_of_a_dead_worker_is_put_back_even_if_the_clock_has_gone_back(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("e1", "r"))
    ahead = int(redis_client.time()[0]) * 1_000 + 3_600_000
    redis_client.zadd("credhook:credhook:open", {"e1": ahead})
    (claim,) = (await worker(async_redis, "dies").take(1, urgent=0)).claims
    redis_client.delete("credhook:credhook:leases", "credhook:credhook:locks")
    put_back = PutBack(redis_client, queue="credhook", retention=3_600)
    redis_client.hset("credhook:credhook:event:e1", mapping={"state": "waiting", "due": 1})
    assert put_back(claim.event_id, in_transit=0, first=True) == 1
    assert not redis_client.hexists(
        "credhook:credhook:event:e1", "due"
    )  # What is queued is due, whatever the clock does.
    assert [one.event_id for one in (await worker(async_redis, "next").take(1, urgent=0)).claims] == ["e1"]


def test_an_orphan_behind_ten_thousand_that_wait_is_found(redis_client: Redis) -> None:
    pipeline = redis_client.pipeline(transaction=False)
    now = redis_client.time()[0]
    for number in range(10_050):
        event_id = f"m{number}"
        fields: Any = {"state": "waiting", "type": COMPLETED, "resource": event_id, "received": 1}
        pipeline.hset("credhook:credhook:event:" + event_id, mapping=fields)
        pipeline.zadd("credhook:credhook:open", {event_id: number})
        pipeline.zadd("rq:scheduled:credhook", {job_id(event_id): now + 3_600})
    orphan: dict[Any, Any] = {"state": "accepted", "type": COMPLETED, "resource": "r", "received": 1}
    pipeline.hset("credhook:credhook:event:orphan", mapping=orphan)
    pipeline.zadd("credhook:credhook:open", {"orphan": 20_000})
    pipeline.execute()
    assert Sweeper(redis_client, queue="credhook", name="n", interval=1, retention=3_600).run() == 1
    assert redis_client.lrange("rq:queue:credhook", 0, -1) == [job_id("orphan").encode()]


@pytest.mark.parametrize("updated_at", [datetime.min, None, "yesterday"])  # noqa: DTZ901  As a platform may write it.
def test_a_time_that_no_clock_shows_is_no_time(updated_at: datetime | str | None) -> None:
    assert version(COMPLETED, updated_at) == (3, 0)
