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
MAX_BYTES = 520
COUNT = 1_000
HANDLED = Settlement(State.DONE, records={"accounts.open_account": "done 12"}, latest=(3, 1_790_000_000_000))


async def settled(redis_url: str) -> None:
    """Take so many events to their end."""
    events = {
        f"msg_{number:024}": Event("openid4vc.verification.verified", f"cmfw{number:021}") for number in range(COUNT)
    }
    async with AsyncRedis.from_url(redis_url) as redis, inbox_on(redis) as inbox:
        await asyncio.gather(*(inbox.accept(webhook_id, event) for webhook_id, event in events.items()))
        queue = Claims(store_on(redis, retention=604_800), lease=15)
        claims: list[Any] = [await queue.claim(webhook_id) for webhook_id in events]
        await asyncio.gather(*(queue.settle(claim, HANDLED) for claim in claims))


async def test_a_settled_event_stays_within_its_bytes(redis_client: Redis, redis_url: str) -> None:
    await settled(redis_url)
    # RQ's worker deletes its own records of a job that has succeeded. "urgent" is as long as the backlog.
    ours = [key for key in redis_client.scan_iter("credhook:*") if not key.endswith(b":urgent")]
    # The server's own sum also has buffers and caches of scripts, which differ from run to run.
    whole = sum(redis_client.memory_usage(key, samples=0) or 0 for key in ours) / COUNT
    assert 400 < whole < MAX_BYTES
