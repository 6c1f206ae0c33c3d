"""What a settled event costs in Redis."""

import asyncio
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.events import Event
from credhook.store import State
from credhook.worker.queue.claims import Claims, Settlement
from support.store.accepting import inbox_on
from support.store.stores import store_on

#: Bytes of Redis that one settled event may cost.
MAX_BYTES = 580
COUNT = 1_000
HANDLED = Settlement(State.DONE, records={"accounts.open_account": "done 12"}, latest=(3, 1_790_000_000_000))


async def settled(redis_url: str, batch: str) -> None:
    """Take so many events to their end, over connections whose memory Redis has back afterwards."""
    events = {
        f"msg_{batch}{number:023}": Event("openid4vc.verification.verified", f"cmfw{batch}{number:020}")
        for number in range(COUNT)
    }
    async with AsyncRedis.from_url(redis_url) as redis, inbox_on(redis) as inbox:
        await asyncio.gather(*(inbox.accept(webhook_id, event) for webhook_id, event in events.items()))
        queue = Claims(store_on(redis, retention=604_800), lease=15)
        claims: list[Any] = [await queue.claim(webhook_id) for webhook_id in events]
        await asyncio.gather(*(queue.settle(claim, HANDLED) for claim in claims))


async def test_a_settled_event_stays_within_its_bytes(redis_client: Redis, redis_url: str) -> None:
    # Warm: scripts, and the tables that Redis keeps per kind of key.
    before = 0
    for batch in range(2):
        await settled(redis_url, str(batch))
        # RQ's worker deletes its own records of a job that has succeeded.
        for key in redis_client.scan_iter("rq:*"):
            redis_client.delete(key)
        redis_client.delete("credhook:credhook:urgent")  # Of the length of the backlog, and there is none.
        used = int(redis_client.info("memory")["used_memory"])
        whole, before = (used - before) / COUNT, used
    assert 100 < whole < MAX_BYTES
