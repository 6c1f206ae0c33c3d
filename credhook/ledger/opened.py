"""When the oldest open event came: one command, whatever the ledger holds, and it writes nothing.

A worker of a version that does not know of this index may leave an event in it; the reconciler takes it out within
seconds.
"""

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.ledger import Index


def oldest_open(redis: Redis, index: Index) -> int | None:
    """When the oldest open event came, in ms since the epoch; None if none is open.

    Raises:
        RedisError: Redis failed.
    """
    return _time(redis.zrange(index.opened, 0, 0, withscores=True))


async def oldest_open_async(redis: AsyncRedis, index: Index) -> int | None:
    """The same for asynchronous code.

    Raises:
        RedisError: Redis failed.
    """
    return _time(await redis.zrange(index.opened, 0, 0, withscores=True))


def _time(first: Sequence[Any]) -> int | None:
    return int(first[0][1]) if first else None
