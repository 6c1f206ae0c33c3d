"""How long the oldest open event has been open."""

from typing import Final, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from credhook.ledger import EVENT, Index

#: Of the open events, how many of those that have not moved for longest are looked at.
_LOOKED_AT: Final = 100


async def oldest_open(redis: Redis, index: Index) -> float | None:
    """Seconds since the oldest open event was received, by Redis's clock; None if none is open.

    It is among those that have not moved for longest, or is retried; at least the age of the former is known at a cost
    that does not depend on how many there are.

    Raises:
        RedisError, OSError: Redis does not say.
    """
    ids = cast(list[bytes], await redis.zrange(index.open, 0, _LOOKED_AT - 1))
    if not ids:
        return None
    pipeline = redis.pipeline(transaction=False)
    pipeline.time()
    for event_id in ids:
        pipeline.hget(EVENT.encode() + event_id, "received")
    clock, *received = await pipeline.execute(raise_on_error=False)
    if isinstance(clock, RedisError):
        raise clock
    seconds, microseconds = clock
    since = [int(one) / 1_000 for one in received if isinstance(one, bytes) and one.isdigit()]
    return max(0.0, seconds + microseconds / 1_000_000 - min(since)) if since else None
