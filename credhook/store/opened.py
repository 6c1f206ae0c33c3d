"""When the oldest open event came: two commands, whatever the ledger holds, and they write nothing.

The open events are sorted by when they last moved, which is when they came for all but those that have been put back,
parked or retried since: these stand a second time, by when they came. A worker of a version that does not know of that
may leave an event there; the reconciler takes it out within seconds. Where Redis fails, RedisError is raised.
"""

from collections.abc import Sequence
from typing import Any, Final

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.store import LATEST, Keys

#: The first whose score is a time: somebody else may have written what is none.
_FIRST: Final[dict[str, Any]] = {"start": 0, "end": LATEST, "byscore": True, "offset": 0, "num": 1, "withscores": True}


def oldest_open(redis: Redis, index: Keys) -> int | None:
    """When the oldest open event came, in ms since the epoch; None if none is open."""
    return _earliest([redis.zrange(key, **_FIRST) for key in (index.open, index.opened)])


async def oldest_open_async(redis: AsyncRedis, index: Keys) -> int | None:
    """The same for asynchronous code."""
    return _earliest([await redis.zrange(key, **_FIRST) for key in (index.open, index.opened)])


def _earliest(firsts: Sequence[Any]) -> int | None:
    return min((int(first[0][1]) for first in firsts if first), default=None)
