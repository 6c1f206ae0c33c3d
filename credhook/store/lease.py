"""A lock in Redis that expires, so that another process gets it when its holder dies."""

from uuid import uuid4

from credhook.store.store import AsyncStore


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
