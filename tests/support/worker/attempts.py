"""Attempts made in the test's own process: a real Redis, a stub of the platform, and no worker around them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from credhook.events import Event
from credhook.settings import WorkerSettings
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.handlers.registry import Handlers, Registry
from credhook.worker.queue.claims import Claim, Settlement
from credhook.worker.wiring import Parts, build_worker
from support.platform.platform_settings import leading_to
from support.store.accepting import inbox_on
from support.worker.fleet_harness import Stub


class Attempts:
    """One worker's processor, and what it works with.

    Attributes:
        redis: the store's client.
        claims: the store as this worker sees it.
        processor: what makes the attempts.
    """

    def __init__(self, parts: Parts) -> None:
        self.redis = parts.store.redis
        self.claims = parts.processor.claims
        self.processor = parts.processor

    async def accept(self, event_id: str, event_type: str, resource_id: str) -> None:
        async with inbox_on(self.redis) as inbox:
            await inbox.accept(event_id, Event(event_type, resource_id))

    async def claim(self) -> Claim:
        """The next event; of those that wait, the first that is due."""
        async with asyncio.timeout(60):
            while not (claims := (await self.claims.take(1, urgent=0)).claims):  # noqa: ASYNC110  Redis has no event.
                await asyncio.sleep(0.02)
        return claims[0]

    async def claim_of(self, event_id: str) -> Claim:
        """That event, once its next attempt is due."""
        async with asyncio.timeout(60):
            while not isinstance(claim := await self.claims.claim(event_id), Claim):  # noqa: ASYNC110  Likewise.
                await asyncio.sleep(0.02)
        return claim

    async def park(self) -> None:
        """Have the next event wait for one of the same resource, as whoever takes it does."""
        assert not (await self.claims.take(1, urgent=0)).claims

    async def make(self, attempt: Attempt, *, follow: bool = False) -> tuple[Settlement | None, Claim | None]:
        return await self.processor.handle(attempt, may_follow=lambda: follow)

    async def make_two(self) -> Attempt:
        """An attempt at the event that follows the next one, with what the attempt at that one knew; both are made."""
        first = Attempt(await self.claim())
        await self.park()
        _, following = await self.make(first, follow=True)
        assert following is not None
        second = Attempt(following, known=first.fetched)
        await self.make(second)
        return second

    async def next(self, attempt: Attempt | None = None) -> Settlement:
        """What the attempt comes to, or else one at the next event."""
        settlement, _ = await self.make(attempt or Attempt(await self.claim()))
        assert settlement is not None
        return settlement


class Planned:
    """Handlers of the application `test` that end as the test says.

    Attributes:
        handlers: those that were made first.
        gates: handler → what it waits for.
        ends: handler → what it raises then.
        notes, stale: what they have done, in order; whether each run was told that its state is stale.
    """

    def __init__(self, *names: str) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.ends: dict[str, Exception] = {}
        self.notes: list[str] = []
        self.stale: list[bool] = []
        self.handlers: Any = self.make(*names)

    @property
    def ran(self) -> list[str]:
        """The handlers that have begun, in order."""
        return [note.removesuffix(" begins") for note in self.notes if note.endswith(" begins")]

    def make(self, *names: str, on: str = "*", options: Mapping[str, Any] = MappingProxyType({})) -> Handlers[Any]:
        """Make handlers of these names; `options`: name → options of that handler."""
        handlers = Handlers("test")
        for name in names:
            self.add(name, on, handlers=handlers, **options.get(name, {}))
        return handlers

    def add(self, name: str, *types: str, gated: bool = False, handlers: Any = None, **options: Any) -> None:
        async def handler(event: Any, context: Any) -> None:
            self.notes.append(f"{name} begins")
            self.stale.append(context.stale)
            if name in self.gates:
                await self.gates[name].wait()
            if name in self.ends:
                raise self.ends[name]
            self.notes.append(f"{name} ends")

        if gated:
            self.gates[name] = asyncio.Event()
        handler.__name__ = name
        (handlers or self.handlers).on(*(types or ("*",)), **options)(handler)


def told(redis_url: str, stub: Stub, **settings: Any) -> WorkerSettings:
    """Settings that lead to the stub."""
    more = {f"CREDHOOK_{name}": value for name, value in settings.items()}
    return WorkerSettings.model_validate({"REDIS_URL": redis_url, **leading_to(stub.url), **more})


@asynccontextmanager
async def attempts(redis_url: str, stub: Stub, handlers: Handlers[Any], **settings: Any) -> AsyncIterator[Attempts]:
    worker = "w"
    async with build_worker(told(redis_url, stub, **settings), Registry([handlers]), worker=worker) as parts:
        await parts.lifespan.start()
        yield Attempts(parts)
