"""The ledger, and what is seen of the fleet: one connection pool and one look for all pages.

What asks Redis runs in threads, as the commands whose code it shares; the pages wait for it and nobody else does.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import structlog
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from credhook.console.pages.history import History, sample
from credhook.ops.attention import Limits, look_at
from credhook.ops.findings import Finding
from credhook.ops.fleet import Fleet, platform_of_host
from credhook.settings import LedgerSettings
from credhook.store import Keys
from credhook.store.address import RedisAddress
from credhook.store.connection import open_redis_sync

log = structlog.get_logger("credhook.console")

#: Seconds between two looks at the fleet.
_EACH: Final = 2.0

T = TypeVar("T")


class Look(NamedTuple):
    """The fleet at one moment, in seconds since the epoch; without facts where Redis does not say."""

    at: float
    facts: Fleet | None
    remarks: tuple[Finding, ...]


class Ledger:
    """What the pages ask; `redis` is synchronous, for use in threads."""

    def __init__(self, settings: LedgerSettings, *, clock: Callable[[], float] = time.time) -> None:
        """Prepare; nothing is asked yet."""
        address = RedisAddress.parse(settings.redis_url.get_secret_value())
        self.redis: Redis = open_redis_sync(address, retry=Retry(NoBackoff(), 0))
        self.index = Keys(settings.queue)
        self.retention = settings.retention
        self.history = History()
        self._address = str(address)
        self._clock = clock
        self._latest: Look | None = None
        self._platform = platform_of_host()

    async def ask(self, question: Callable[[Redis, Keys], T]) -> T:
        """What the question comes to.

        Raises:
            RedisError, OSError: Redis failed.
        """
        return await asyncio.to_thread(question, self.redis, self.index)

    async def look(self) -> Look:
        """The latest look, or the first."""
        return self._latest or await self._look()

    async def watch(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(_EACH)

    async def _look(self) -> Look:
        look = await asyncio.to_thread(self._read)
        if look.facts:
            self.history.add(look.at, sample(look.facts))
        self._latest = look
        return look

    def _read(self) -> Look:
        facts, remarks = look_at(self.redis, self._address, self.index.queue, self._platform, Limits())
        return Look(self._clock(), facts, remarks)
