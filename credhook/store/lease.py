"""A lock in Redis that expires, so that another process gets it when its holder dies."""

import asyncio
from contextlib import suppress
from typing import Final
from uuid import uuid4

from credhook.store.errors import STORE_ERRORS
from credhook.store.store import AsyncStore

#: Seconds that an exporter lease lasts, and between two renewals.
EXPORTER_LEASE_SECONDS: Final = 8.0
EXPORTER_RENEWAL_SECONDS: Final = 2.0


class RedisLease:
    """One process's share in a lease."""

    def __init__(self, store: AsyncStore, key: str) -> None:
        self.key = key
        self.holder = uuid4().hex
        self._store = store

    async def acquire(self, seconds: float) -> bool:
        """Acquire or renew the lease; return False if another process holds it."""
        return bool(await self._store.run("lease", [self.holder, max(1, int(seconds * 1_000))], keys=[self.key]))

    async def release(self) -> None:
        """Release the lease, unless another process holds it by now."""
        await self._store.run("lease", [self.holder, 0], keys=[self.key])


class ExporterLease(RedisLease):
    """The lease of the one admin listener that exports the fleet's figures: a sum over all listeners stays true."""

    async def keep(self) -> None:
        """Acquire the lease when it is free and renew it, until cancelled."""
        while True:
            with suppress(*STORE_ERRORS):  # Without Redis there is nothing to export.
                await self.acquire(EXPORTER_LEASE_SECONDS)
            await asyncio.sleep(EXPORTER_RENEWAL_SECONDS)

    def is_held_by(self, holder: object) -> bool:
        """Return True if `holder`, the value of the key in Redis, is this process."""
        return holder == self.holder.encode()
