"""Whose turn it is to export what all admin listeners could: one of them at a time, so that a sum over targets is true.

Whoever has the turn keeps it, at intervals of its own and never because it is scraped. When it dies another has it
within seconds; until then nobody exports these figures, and no series stands twice.
"""

import asyncio
from contextlib import suppress
from typing import Final
from uuid import uuid4

from redis.asyncio import Redis
from redis.exceptions import RedisError

from credhook.store import lua

#: Seconds that a turn lasts unless it is kept, and between two times that it is.
LASTS: Final = 8.0
KEEP_EACH: Final = 2.0

_KEEP: Final = lua.load("keep_turn.lua")


class Turn:
    """One admin listener's share in it."""

    def __init__(self, redis: Redis, key: str) -> None:
        """`key`: where the turn is."""
        self.key = key
        self._name = uuid4().hex
        self._keep = redis.register_script(_KEEP)

    async def keep(self) -> None:
        """Take the turn when it is free, and keep it, until cancelled."""
        while True:
            with suppress(RedisError, OSError):  # Without Redis there is nothing to export either.
                await self.keep_once()
            await asyncio.sleep(KEEP_EACH)

    async def keep_once(self) -> bool:
        """Take it if it is free, or keep it; whether it is ours now.

        Raises:
            RedisError, OSError: Redis does not say.
        """
        return bool(await self._keep(keys=[self.key], args=[self._name, int(LASTS * 1_000)]))

    def is_ours(self, holder: object) -> bool:
        """Whether it is ours, by what Redis has under the key."""
        return holder == self._name.encode()
