"""Replies of Redis that are lost, late or errors: nothing is written or run twice, and no worker ends."""

from accepting import inbox_on, record
from claiming import take_one
from handled_events import handled_once
from harness import COMPLETED, Harness
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis_keys import INDEX, job_id
from redis_proxy import redis_proxy
from stores import store_on
from waiting import until

from credhook.events import Event
from credhook.store import State
from credhook.store.connection import open_redis
from credhook.worker.queue.claims import Claimant, Claims, Settlement


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
