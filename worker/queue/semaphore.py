"""How many events a handler has at a time, in the whole fleet: a semaphore whose places are held by leases."""

from collections.abc import Mapping
from typing import Final

from redis.asyncio import Redis

from credhook.store import Keys, lua
from credhook.worker.queue.claim import Claim

#: Milliseconds that a set lasts after anybody has asked for it: longer than any run.
_LASTS: Final = 86_400_000
_ACQUIRE: Final = lua.load("semaphore.lua")


class Semaphores:
    """One for each handler of a queue that wants one. A place ends with the event's lease: nobody gives it back."""

    def __init__(self, redis: Redis, queue: str) -> None:
        self._index = Keys(queue)
        self._script = redis.register_script(_ACQUIRE)

    async def acquire(self, claim: Claim, limits: Mapping[str, int]) -> str | None:
        """Have a place with each of these handlers, or with none; the first that has no place left, or None.

        `limits`: handler's name → how many events it may have at a time.

        Raises:
            RedisError: it could not be told.
        """
        names = list(limits)
        keys = [self._index.leases, *(self._index.running + name for name in names)]
        full: int = await self._script(keys=keys, args=[claim.event_id, _LASTS, *limits.values()])
        return names[full - 1] if full else None
