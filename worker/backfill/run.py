"""Compare the platform's lists with the store, and accept what no delivery has brought.

Which events must have happened follows from the status and the times of an issuance or a presentation. The platform's
words for a status differ in case between pages, so case is ignored.

Deliveries go on meanwhile. From before the store is read until the last event is accepted, deliveries note what they
bring, and the script that accepts looks at these notes (credhook/store/scripts/accept.lua). So an event is accepted
from one side only.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import uuid4

from credhook.events import ISSUANCE, PRESENTATION, RESOURCES, Event, Resource, is_resource_id, resource_of
from credhook.store import BACKFILLED
from credhook.store.job import accept_arguments
from credhook.store.store import AsyncStore
from credhook.worker.api.client import AsyncApi, pages, retried
from credhook.worker.api.models import ListedResource
from credhook.worker.api.operations import Page

#: Seconds that one page of the platform may take, pauses and retries included.
PAGE_SECONDS: Final = 600.0
#: Seconds that deliveries go on noting what they bring after a backfill was last heard of.
_NOTING_SECONDS: Final = 600
#: Records that are read in one round trip.
_RECORDS: Final = 500
#: Events that one script accepts, about: Redis does nothing else for two milliseconds.
_BATCH: Final = 100

_ISSUANCE, _VERIFICATION = "openid4vc.issuance.", "openid4vc.verification."
_OFFERED: Final = (_ISSUANCE + "offered",)
_REQUESTED: Final = (_VERIFICATION + "requested",)
#: Both announce one state, and a platform may send either or both. If one has arrived, the other is not missing. If
#: none has, `data` is accepted: handlers of both can use it.
_VERIFIED: Final = (_VERIFICATION + "data", _VERIFICATION + "verified")

#: The event types that announce one state; any of them does.
Announced = tuple[str, ...]

#: Status of an issuance → the states that it has gone through, the present one last.
#:
#: Only certain states are here: an accepted, declined or overdue resource was offered before. A batch may or may not
#: have been issued in part before it was complete, failed or expired. A revoked issuance was issued before, in part or
#: completely, and no event announces the revocation.
_ISSUANCE_STATES: Final[Mapping[str, tuple[Announced, ...]]] = {
    "offered": (_OFFERED,),
    "partiallyissued": (_OFFERED, (_ISSUANCE + "partiallyIssued",)),
    "completed": (_OFFERED, (_ISSUANCE + "completed",)),
    "failed": (_OFFERED, (_ISSUANCE + "failed",)),
    "expired": (_OFFERED, (_ISSUANCE + "expired",)),
    "revoked": (_OFFERED, ()),
}

#: Status of a presentation → the states that it has gone through, the present one last.
#:
#: Every answer was requested before; what an `answered` presentation came to is not certain. A declined request has the
#: status `rejected` and is announced as failed.
_PRESENTATION_STATES: Final[Mapping[str, tuple[Announced, ...]]] = {
    "requested": (_REQUESTED,),
    "pending": (_REQUESTED,),
    "answered": (_REQUESTED, ()),
    "verified": (_REQUESTED, _VERIFIED),
    "rejected": (_REQUESTED, (_VERIFICATION + "failed",)),
    "failed": (_REQUESTED, (_VERIFICATION + "failed",)),
    "expired": (_REQUESTED, (_VERIFICATION + "expired",)),
}
#: Resource → status → states. A backfill counts resources that are not listed here as of unknown status.
STATES: Final[Mapping[Resource, Mapping[str, tuple[Announced, ...]]]] = {
    ISSUANCE: _ISSUANCE_STATES,
    PRESENTATION: _PRESENTATION_STATES,
}


class MissableEvent(NamedTuple):
    """An event that must have happened. It has arrived if any of its types has."""

    resource: str
    types: Announced


@dataclass(frozen=True, slots=True)
class Window:
    """The time span of a backfill, `until` excluded.

    The store may have forgotten earlier events. Later events may still be on their way.
    """

    since: datetime
    until: datetime


class Untold(Exception):
    """A resource does not tell what has happened to it. The argument is a word for counting."""


def must_have_happened(
    resource: ListedResource, kind: Resource, window: Window, wanted: Collection[str]
) -> list[MissableEvent]:
    """Return the wanted events of the window that must have happened to the resource, in the order of its states.

    A resource came into its present state when it was last updated. The times of earlier states are unknown: they
    count if the resource was created in the window. A resource that was never updated had no earlier state.

    Raises:
        Untold: the resource has no time, an invalid id, or an unknown status.
    """
    if not is_resource_id(resource.id):
        raise Untold("unreadable_id")
    gone_through = STATES.get(kind, {}).get(resource.status.casefold())
    if gone_through is None:
        raise Untold("unknown_status")
    created, updated = _time(resource.created_at), _time(resource.updated_at)
    if updated is None:
        raise Untold("undated")
    if not window.since <= updated < window.until:
        return []
    if created is None or not window.since <= created < updated:
        gone_through = gone_through[-1:]
    found = (tuple(name for name in announced if name in wanted) for announced in gone_through)
    return [MissableEvent(resource.id, types) for types in found if types]


def _time(observed: datetime | str | None) -> datetime | None:
    return observed if isinstance(observed, datetime) else None


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
    ) -> None:
        """Prepare. `advance` gets the number of resources and records read since."""
        self._store = store
        self._keys, self._redis = store.keys, store.redis
        self._advance = advance
        self._name = f"run {uuid4().hex}"
        self._accepts = False
        self._result = result

    async def run(self, api: AsyncApi, window: Window, wanted: Collection[str], *, dry: bool) -> None:
        """Accept the wanted events of the window that have not arrived, or only count them.

        The result grows meanwhile. A list that no wanted type is about is not read.

        Raises:
            ApiError: the platform refuses a page, or does not send it in time.
            TooLate: it has taken too long.
        """
        result, happened = self._result, dict[MissableEvent, None]()
        for kind in RESOURCES:
            if kind not in map(resource_of, wanted):
                continue
            async for resources in walk(getattr(api, kind.namespace).page):
                result.listed += len(resources)
                self._advance(len(resources))
                for resource in resources:
                    try:
                        happened |= dict.fromkeys(must_have_happened(resource, kind, window, wanted))
                    except Untold as untold:
                        result.untold[untold.args[0]] += 1
        result.happened = len(happened)
        if time.time() > window.since.timestamp() + self._store.retention:
            raise TooLate
        if dry:
            result.missing.update(event.types[0] for event in await self._missing(happened))
        else:
            await self.accept_missing(happened)

    async def _missing(self, events: Iterable[MissableEvent]) -> list[MissableEvent]:
        """Return the events that have not arrived, in their order. Nothing is written."""
        left = dict.fromkeys(events)
        by_event = {(event.resource, kind): event for event in left for kind in event.types}
        async for resource_and_type in self._records():
            if (found := by_event.get(resource_and_type)) is not None:
                left.pop(found, None)
        return list(left)

    async def accept_missing(self, events: Iterable[MissableEvent]) -> None:
        """Accept the events that have not arrived, and count them in the result.

        However often and wherever this runs, an event is accepted once. Events of one resource follow each other in
        the order of its states.
        """
        left = list(events)
        while left:
            self._accepts = True
            await self._store.run("add", [self._name, 1_000 * _NOTING_SECONDS], keys=[self._keys.arrivals])
            left = await self._missing(left)
            for batch in _batches(left):
                await self._redis.expire(self._keys.arrivals, _NOTING_SECONDS)
                if not await self._redis.sismember(self._keys.arrivals, self._name):
                    break  # Redis has lost the notes: compare again.
                self._result.missing.update(await self._accept(batch))
                left = left[len(batch) :]

    async def _accept(self, batch: Sequence[MissableEvent]) -> list[str]:
        events = [Event(missing.types[0], missing.resource) for missing in batch]
        named = [(f"{BACKFILLED}{event.type}:{event.resource_id}", event, None) for event in events]
        store, now = self._store, datetime.now(UTC)
        arguments = accept_arguments(named, queue=store.queue, retention=store.retention, now=now, is_backfill=True)
        outcomes = await store.run("accept", arguments)
        return [event.type for event, outcome in zip(events, outcomes, strict=True) if outcome == b"accepted"]

    async def _records(self) -> AsyncIterator[tuple[str, str]]:
        """Yield resource and type of every event in the store, some perhaps twice."""
        cursor = None
        while cursor != 0:
            cursor, keys = await self._redis.scan(cursor or 0, match=self._keys.event + "*", count=_RECORDS)
            pipeline = self._redis.pipeline(transaction=False)
            for key in keys:
                pipeline.hmget(key, "resource", "type")
            if self._accepts:  # Reading a large store must not outlast the notes.
                pipeline.expire(self._keys.arrivals, _NOTING_SECONDS)
            replies = await pipeline.execute()
            self._advance(len(keys))
            for resource, kind in replies[: len(keys)]:
                if resource and kind:
                    yield resource.decode(), kind.decode()


async def walk(
    page: Callable[[str], Awaitable[Page[ListedResource]]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[tuple[ListedResource, ...]]:
    """Yield each page of a list; `page` reads the page of a query, the first for "".

    Raises:
        ApiError: the platform refuses a page, has not sent it within `PAGE_SECONDS`, or repeats a link.
    """
    async for read in pages(lambda query: retried(lambda: page(query), PAGE_SECONDS, clock=clock, sleep=sleep)):
        yield read.items


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
