"""Replies of Redis that are lost, late or errors: nothing is written or run twice, and no worker ends."""

from accepting import inbox_on, record
from claiming import take_one
from harness import COMPLETED
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis_keys import INDEX, job_id
from redis_proxy import redis_proxy
from stores import store_on

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
