"""The rate limit of the whole fleet: a token bucket in Redis.

credhook:<queue>:platform:<digest of the API's URL>:bucket   when the bucket will be full again, in microseconds
"""

from typing import Final

from credhook.store.store import AsyncStore

_MICROSECONDS: Final = 1_000_000


class RateLimit:
    """The fleet's token bucket (generic cell rate algorithm). It holds the calls of one second, and at least one."""

    def __init__(self, store: AsyncStore, key: str, *, per_second: float) -> None:
        self._store = store
        self._key = key
        self._interval = _MICROSECONDS / per_second
        self._capacity = max(1.0, per_second) * self._interval

    async def take(self, wanted: int, *, max_wait: float = 0.0) -> tuple[int, float]:
        """Take tokens for calls; a negative number gives tokens back.

        If the bucket is empty, one token is reserved when it will be there within `max_wait` seconds.

        Returns:
            The number of tokens, and the seconds until the reserved or the next token is there.
        """
        arguments = [wanted, self._interval, self._capacity, max_wait * _MICROSECONDS]
        taken, wait = await self._store.run("rate_limit", arguments, keys=[self._key])
        return taken, wait / _MICROSECONDS
