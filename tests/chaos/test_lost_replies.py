"""Replies of Redis that are lost, late or errors: nothing is written or run twice, and no worker ends."""

import re

import pytest
from accepting import inbox_on, record
from claiming import take_one
from handled_events import INDEX, begun, handled_once
from harness import COMPLETED, HELD, Harness
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis_keys import job_id
from redis_proxy import redis_proxy
from serving import children
from stores import store_on
from waiting import until

from credhook.events import Event
from credhook.sandbox.local.environment import free_port
from credhook.store import State
from credhook.store.connection import open_redis
from credhook.worker.queue.claims import Claimant, Claims, Settlement


def answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisTimeoutError:
        return False


def claims_of(redis: AsyncRedis) -> Claims:
    return Claims(store_on(redis), lease=5.0, worker=Claimant("w", "token"))


async def test_a_hand_back_whose_reply_is_lost_is_written_once(redis_url: str, redis_client: Redis) -> None:
    with redis_proxy(redis_url) as proxy:
        async with open_redis(proxy.url) as redis:
            claims = claims_of(redis)
            async with inbox_on(redis) as inbox:
                await inbox.accept("m1", Event(COMPLETED, "iss_1"))
            claim = await take_one(claims)
            proxy.lose = 1
            ours, _ = await claims.settle(claim, Settlement(State.ACCEPTED, spend=False))
        assert proxy.lost == 1
    assert ours
    assert record(redis_client, "m1")["attempts"] == "0"
    assert redis_client.lrange(INDEX.jobs, 0, -1) == [job_id("m1").encode()]


@pytest.mark.parametrize("state", [State.WAITING, State.ACCEPTED])
async def test_a_renewal_that_comes_after_the_settlement_does_not_bring_the_lease_back(
    redis_client: Redis, async_redis: AsyncRedis, state: State
) -> None:
    """They go over two connections: an event with a lease and no holder would be dropped from the queue when popped."""
    claims = claims_of(async_redis)
    async with inbox_on(async_redis) as inbox:
        await inbox.accept("m1", Event(COMPLETED, "iss_1"))
    claim = await take_one(claims)
    await claims.settle(claim, Settlement(state, wait=0.0))
    assert await claims.renew([claim]) == [claim]
    assert not redis_client.exists(INDEX.leases)
    assert not redis_client.exists(INDEX.locks)
    assert (await take_one(claims)).event_id == "m1"


def test_replies_lost_after_our_own_scripts_run_nothing_twice(harness: Harness) -> None:
    harness.plugin("""
@handlers.on("*")
async def sometimes_later(event, context):
    if event.webhook_id.startswith("later") and not any(
        line == f"put off {event.webhook_id}" for line in (notes() if (here / "notes").exists() else ())
    ):
        note("put off", event.webhook_id)
        raise Retry(after=0.2)
    note("first", event.webhook_id)
""")
    ids = [f"{kind}{number}" for kind in ("now", "later") for number in range(12)]
    for one in ids:
        harness.happens(one)
    with redis_proxy(harness.redis_url) as proxy:
        proxy.lose = 16
        with harness.worker(REDIS_URL=proxy.url, CREDHOOK_CONCURRENCY="4") as worker:
            handled_once(harness, *ids)
            assert worker.text.count('"worker_started"') == 1
            assert worker.stop() == 0
        until(lambda: len(harness.redis.client_list()) == 1, what="the proxy without clients")
        assert proxy.lost >= 10


def test_a_redis_that_is_full_read_only_or_silent_for_a_while_does_not_end_the_worker(harness: Harness) -> None:
    harness.plugin(HELD)
    harness.happens("m1")
    redis = harness.redis
    with harness.worker(CREDHOOK_CONCURRENCY="1") as worker:

        def refusals() -> int:
            # Redis 6.2 wraps the error of a command within a script in one of its own.
            return len(re.findall('"error":"(?:OutOfMemory|ReadOnly|Response)Error"', worker.text))

        until(lambda: begun(harness) == ["m1"])
        harness.happens("m2")
        before = children(worker)
        for refuse, allow in (
            (lambda: redis.config_set("maxmemory", 1), lambda: redis.config_set("maxmemory", 0)),
            (lambda: redis.replicaof("127.0.0.1", str(free_port())), lambda: redis.replicaof("NO", "ONE")),
        ):
            count = refusals()
            refuse()
            try:
                until(lambda count=count: refusals() > count, what="a refused write")  # type: ignore[misc]
            finally:
                allow()
        (harness.folder / "go").touch()
        harness.reaches("m1", "done")
        harness.reaches("m2", "done")
        redis.execute_command("CLIENT", "PAUSE", 6_000, "ALL")  # type: ignore[no-untyped-call]
        until(lambda: "TimeoutError" in worker.text, what="a time-out")
        until(lambda: answers(redis), what="the end of the pause")
        harness.happens("m3")
        handled_once(harness, "m1", "m2", "m3")
        assert children(worker) == before
