"""The rate limit of the whole fleet: one token bucket per platform, in Redis (generic cell rate algorithm)."""

from typing import Final

from redis.asyncio import Redis

from credhook.store import lua

_MICROSECONDS: Final = 1_000_000
_TAKE: Final = lua.load("rate_limit.lua")


class RateLimit:
    """The fleet's token bucket. It holds one second's worth of calls, and at least one."""

    def __init__(self, redis: Redis, key: str, *, per_second: float) -> None:
        self._script = redis.register_script(_TAKE)
        self._key = key
        self._interval = _MICROSECONDS / per_second
        self._capacity = max(1.0, per_second) * self._interval

    async def take(self, wanted: int, *, max_wait: float = 0.0) -> tuple[int, float]:
        """Take tokens for calls; a negative number gives tokens back.

        If the bucket is empty, one token is reserved when it will be there within `max_wait` seconds.

        Returns:
            The number of tokens, and the seconds until the reserved or the next token is there.

        Raises:
            RedisError, OSError: The tokens cannot be counted, so there are none.
        """
        arguments = [wanted, self._interval, self._capacity, max_wait * _MICROSECONDS]
        taken, wait = await self._script(keys=[self._key], args=arguments)
        return taken, wait / _MICROSECONDS
