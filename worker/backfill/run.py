"""Compare the platform's lists with the store, and accept what no delivery has brought.

Deliveries go on meanwhile. From before the store is read until the last event is accepted, deliveries note what they
bring, and the script that accepts looks at these notes (credhook/store/scripts/accept.lua). So an event is accepted
from one side only.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from credhook.backoff import Backoff, Waits
from credhook.events import RESOURCES, Event, resource_of
from credhook.store import BACKFILLED
from credhook.store.job import accept_arguments
from credhook.store.store import AsyncStore
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import InvalidResponse, Unavailable
from credhook.worker.api.models import ListedResource
from credhook.worker.api.operations import Page
from credhook.worker.backfill.states import (
    MissableEvent,
    Untold,
    Window,
    must_have_happened,
)

#: Seconds that one page of the platform may take, pauses and retries included.
PAGE_SECONDS: Final = 600.0
#: Waits between two tries of a page, unless the platform says how long.
_BACKOFF: Final = Backoff(first=0.5, longest=30.0)
#: Seconds that deliveries go on noting what they bring after a backfill was last heard of.
_NOTING_SECONDS: Final = 600
#: Records that are read in one round trip.
_RECORDS: Final = 500
#: Events that one script accepts, about: Redis does nothing else for two milliseconds.
_BATCH: Final = 100
#: Events that are compared at once: 15 MB of memory, and one pass through the store.
_PART: Final = 50_000

ListPage = Callable[[str], Awaitable[Page[ListedResource]]]


class TooLate(Exception):
    """The backfill took so long that the store may have forgotten events of its window."""


@dataclass(slots=True)
class BackfillResult:
    """The findings so far.

    Attributes:
        listed: resources that the platform has listed.
        happened: events that must have happened.
        missing: event type → how many had not arrived; they were accepted unless this is a dry run.
        untold: why a resource was left → how many such resources.
    """

    listed: int = 0
    happened: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    untold: Counter[str] = field(default_factory=Counter)


class Backfill:
    """One comparison of the platform's lists with the store of one queue."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        result: BackfillResult,
        advance: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare. `advance` gets the number of resources and records read since."""
        self._store = store
        self._keys, self._redis = store.keys, store.redis
        self._advance = advance
        self._clock = clock
        self._name = f"run {uuid4().hex}"
        self._accepts = False
        self.result = result

    async def run(self, api: AsyncApi, window: Window, wanted: Collection[str], *, dry: bool) -> None:
        """Accept the wanted events of the window that have not arrived, or only count them.

        `result` grows meanwhile.

        Raises:
            ApiError: the platform refuses a page, or does not send it in time.
            RedisError: Redis failed.
            TooLate: it has taken too long.
        """
        too_late = window.since.timestamp() + self._store.retention

        async def compare(part: list[MissableEvent]) -> None:
            if self._clock() > too_late:
                raise TooLate
            self.result.happened += len(set(part))
            if dry:
                self.result.missing.update(event.types[0] for event in await self.missing(part))
            else:
                await self.accept_missing(part)

        part: list[MissableEvent] = []
        async for events in self._happened(api, window, wanted):
            part += events
            if len(part) >= _PART:
                await compare(part)
                part = []
        if part:
            await compare(part)

    async def missing(self, events: Iterable[MissableEvent]) -> list[MissableEvent]:
        """Return the events that have not arrived, in their order. Nothing is written.

        Raises:
            RedisError: Redis failed.
        """
        left = dict.fromkeys(events)
        by_event = {(event.resource, kind): event for event in left for kind in event.types}
        async for resource, kind in self._records():
            if (found := by_event.get((resource, kind))) is not None:
                left.pop(found, None)
        return list(left)

    async def accept_missing(self, events: Iterable[MissableEvent]) -> None:
        """Accept the events that have not arrived, and count them in `result`.

        However often and wherever this runs, an event is accepted once. Events of one resource follow each other in
        the order of its states.

        Raises:
            RedisError: Redis failed; another run accepts the rest.
        """
        left = list(dict.fromkeys(events))
        while left:
            await self._start_notes()
            left = await self.missing(left)
            for batch in _batches(left):
                # Redis has lost the notes: compare again.
                if not await self._keep_notes():
                    break
                self.result.missing.update(await self._accept(batch))
                left = left[len(batch) :]

    async def _accept(self, batch: Sequence[MissableEvent]) -> list[str]:
        """Accept a batch and return the types of the events that are new."""
        events = [Event(missing.types[0], missing.resource) for missing in batch]
        named = [(f"{BACKFILLED}{event.type}:{event.resource_id}", event, None) for event in events]
        store, now = self._store, datetime.now(UTC)
        arguments = accept_arguments(named, queue=store.queue, retention=store.retention, now=now, is_backfill=True)
        outcomes = await store.run("accept", arguments)
        return [event.type for event, outcome in zip(events, outcomes, strict=True) if outcome == b"accepted"]

    async def _start_notes(self) -> None:
        self._accepts = True
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.sadd(self._keys.arrivals, self._name)
            pipeline.expire(self._keys.arrivals, _NOTING_SECONDS)
            await pipeline.execute()

    async def _keep_notes(self) -> bool:
        """Return True if deliveries have noted what they bring since `_start_notes`; let them go on."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.sismember(self._keys.arrivals, self._name)
            pipeline.expire(self._keys.arrivals, _NOTING_SECONDS)
            noted, _ = await pipeline.execute()
        return bool(noted)

    async def _records(self) -> AsyncIterator[tuple[str, str]]:
        """Yield resource and type of every event in the store, some perhaps twice."""
        keys: list[bytes] = []
        async for key in self._redis.scan_iter(match=self._keys.event + "*", count=_RECORDS):
            keys.append(key)
            if len(keys) == _RECORDS:
                for record in await self._read(keys):
                    yield record
                keys = []
        for record in await self._read(keys):
            yield record

    async def _read(self, keys: Sequence[bytes]) -> list[tuple[str, str]]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.hmget(key, "resource", "type")
            if self._accepts:  # Reading a large store must not outlast the notes.
                pipeline.expire(self._keys.arrivals, _NOTING_SECONDS)
            replies = await pipeline.execute()
        self._advance(len(keys))
        return [(resource.decode(), kind.decode()) for resource, kind in replies[: len(keys)] if resource and kind]

    async def _happened(
        self, api: AsyncApi, window: Window, wanted: Collection[str]
    ) -> AsyncIterator[list[MissableEvent]]:
        """Yield the events of each page of both lists. A list that no wanted type is about is not read."""
        for kind in RESOURCES:
            if kind not in map(resource_of, wanted):
                continue
            async for resources in walk(getattr(api, kind.namespace).page):
                self.result.listed += len(resources)
                self._advance(len(resources))
                events: list[MissableEvent] = []
                for resource in resources:
                    try:
                        events += must_have_happened(resource, kind, window, wanted)
                    except Untold as untold:
                        self.result.untold[untold.why] += 1
                yield events


async def walk(
    page: ListPage,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[tuple[ListedResource, ...]]:
    """Yield each page of a list; `page` reads the page of a query, the first for "".

    Raises:
        ApiError: the platform refuses a page, has not sent it within `PAGE_SECONDS`, or repeats a link.
    """
    query: str | None = ""
    seen = set[str]()
    while query is not None:
        if query in seen:
            raise InvalidResponse("the platform's list leads in a circle: links.next names a page that has been read")
        seen.add(query)
        read = await _with_retries(page, query, clock, sleep)
        yield read.items
        query = read.following


async def _with_retries(
    page: ListPage, query: str, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]
) -> Page[ListedResource]:
    until, waits = clock() + PAGE_SECONDS, Waits(_BACKOFF)
    while True:
        try:
            return await page(query)
        except Unavailable as error:
            wait = max(waits.next(), error.retry_after or 0.0)
            if clock() + wait > until:
                raise
        await sleep(wait)


def _batches(events: Sequence[MissableEvent]) -> Iterator[list[MissableEvent]]:
    """Split the events into parts of a script's size; the events of one resource stay together."""
    batch: list[MissableEvent] = []
    for _, of_resource in itertools.groupby(events, key=lambda event: event.resource):
        batch += of_resource
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
