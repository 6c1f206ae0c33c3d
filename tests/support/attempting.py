"""Attempts made in the test's own process: a real Redis, a stub of the platform, and no worker around them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from accepting import inbox_on
from ordeal import Stub

from credhook.events import Event
from credhook.redis.connection import open_redis
from credhook.worker.api.auth import ClientCredentials
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.attempt.processor import Processor
from credhook.worker.attempt.slots import Slot
from credhook.worker.attempt.snapshots import Snapshots
from credhook.worker.fleet.platform import Condition
from credhook.worker.handlers.registry import Handlers, Registry
from credhook.worker.queue.claims import Claim, Claims, Settlement, Worker
from credhook.worker.settings import WorkerSettings


class Attempts:
    """One worker's processor, and what it works with.

    Attributes:
        redis: the ledger's client.
        claims: the ledger as this worker sees it.
        processor: what makes the attempts.
        slot: the clients for one event at a time.
    """

    def __init__(self, redis_url: str, stub: Stub, handlers: Handlers, **settings: Any) -> None:
        told = {
            "API_URL": stub.url,
            "TOKEN_URL": stub.url + "/token",
            "CLIENT_ID": "c",
            "CLIENT_SECRET": "s",
        } | settings
        read = WorkerSettings.model_validate(
            {"REDIS_URL": redis_url} | {f"CREDHOOK_{name}": value for name, value in told.items()}
        )
        self.redis = open_redis(redis_url)
        self.claims = Claims(
            self.redis, queue=read.queue, lease=read.lease, retention=read.retention, worker=Worker("w", "w")
        )
        self._condition = Condition.from_settings(self.redis, read)
        snapshots = Snapshots(self.redis, read.snapshot_key)
        self.processor = Processor(read, self.claims, Registry([handlers]), self._condition, snapshots)
        self.slot = Slot(read, ClientCredentials.from_settings(read), self._condition)

    async def accept(self, event_id: str, event_type: str, resource_id: str) -> None:
        async with inbox_on(self.redis) as inbox:
            await inbox.accept(event_id, Event(event_type, resource_id))

    async def claim(self) -> Claim:
        """The next event; of those that wait, the first that is due."""
        async with asyncio.timeout(20):
            while not (claims := (await self.claims.take(1, urgent=0)).claims):  # noqa: ASYNC110  Redis has no event.
                await asyncio.sleep(0.02)
        return claims[0]

    async def claim_of(self, event_id: str) -> Claim:
        """That event, once its next attempt is due."""
        async with asyncio.timeout(20):
            while not isinstance(claim := await self.claims.claim(event_id), Claim):  # noqa: ASYNC110  Likewise.
                await asyncio.sleep(0.02)
        return claim

    async def park(self) -> None:
        """Have the next event wait for one of the same resource, as whoever takes it does."""
        assert not (await self.claims.take(1, urgent=0)).claims

    async def make(self, attempt: Attempt, *, follow: bool = False) -> tuple[Settlement | None, Claim | None]:
        return await self.processor.handle(attempt, self.slot, follow=follow)

    async def next(self) -> Settlement:
        """What an attempt at the next event comes to."""
        settlement, _ = await self.make(Attempt(await self.claim()))
        assert settlement is not None
        return settlement

    async def aclose(self) -> None:
        await self.slot.aclose()
        await self._condition.aclose()
        await self.redis.aclose()


@asynccontextmanager
async def attempts(redis_url: str, stub: Stub, handlers: Handlers, **settings: Any) -> AsyncIterator[Attempts]:
    made = Attempts(redis_url, stub, handlers, **settings)
    watching = asyncio.create_task(made.processor.leases.keep())
    try:
        yield made
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await made.aclose()
