"""`credhook events backfill`: compare the platform's lists with the store, and accept events that never arrived.

Which events must have happened follows from the status and the times of an issuance or a presentation. The platform's
words for a status differ in case between pages, so case is ignored.

Deliveries go on meanwhile. The script that accepts an event (credhook/store/scripts/accept.lua) leaves it if its
resource has had an event since the store was read. The backfill then reads the store again. So an event is accepted
once, from a delivery or from a backfill.
"""

import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import click

from credhook.events import RESOURCES, Announced, Event, Resource, is_resource_id, resource_of
from credhook.settings import WorkerSettings
from credhook.store import BACKFILLED
from credhook.store.counts import counted
from credhook.store.errors import StoreError
from credhook.store.health import unanswered
from credhook.store.job import accept_arguments
from credhook.store.store import AsyncStore
from credhook.worker.api.client import AsyncApi, Sender, pages, retried
from credhook.worker.api.errors import ApiError, with_hint
from credhook.worker.api.models import ListedResource
from credhook.worker.commands.bulk import bar
from credhook.worker.commands.options import MOMENT, TYPE, open_store
from credhook.worker.handlers.loading import load
from credhook.worker.platform.circuit_breaker import CircuitBreaker

#: How long a backfill may take before the store forgets events of its window.
_DURATION: Final = timedelta(hours=1)
#: Nothing has happened later.
_END: Final = datetime.max.replace(tzinfo=UTC)
#: Seconds that one page of the platform may take, pauses and retries included.
_PAGE_SECONDS: Final = 600.0
#: Events that one script accepts, about. They block Redis for two milliseconds.
_BATCH: Final = 100


class MissableEvent(NamedTuple):
    """An event that must have happened. It has arrived if an event of any of its types has.

    If it is missing, an event of the first type is accepted.
    """

    resource: str
    types: Announced


class Window(NamedTuple):
    """The time span of a backfill. The store may have forgotten earlier events, and later ones may be on their way."""

    since: datetime
    until: datetime


class UnclearHistory(Exception):
    """A resource does not show which events it had. The argument is a word for counting."""


def must_have_happened(
    resource: ListedResource, kind: Resource, window: Window, wanted: Collection[str]
) -> list[MissableEvent]:
    """Return the wanted events of the window that must have happened to the resource, in the order of its states.

    A resource came into its present state when it was last updated. The times of earlier states are unknown, so they
    count if the resource was created in the window. A resource that was never updated had no earlier state.

    Raises:
        UnclearHistory: the resource has no time, an invalid id, or an unknown status.
    """
    if not is_resource_id(resource.id):
        raise UnclearHistory("unreadable_id")
    gone_through = kind.states.get(resource.status.casefold())
    if gone_through is None:
        raise UnclearHistory("unknown_status")
    times = resource.created_at, resource.updated_at
    created, updated = (at if isinstance(at, datetime) else None for at in times)
    if updated is None:
        raise UnclearHistory("undated")
    if not window.since <= updated < window.until:
        return []
    if created is None or not window.since <= created < updated:
        gone_through = gone_through[-1:]
    return [
        MissableEvent(resource.id, tuple(sorted(types, key=lambda name: name not in wanted)))  # A wanted type first.
        for types in gone_through
        if any(name in wanted for name in types)
    ]


class TooLate(Exception):
    """The backfill took so long that the store may have forgotten events of its window."""


@dataclass(slots=True)
class Backfill:
    """One comparison of the platform's lists with the store of one queue, and what it has found so far.

    Attributes:
        advance: called with the number of resources listed, or of events compared, since its last call.
        listed: resources that the platform has listed.
        happened: events that must have happened.
        younger: events that happened after the window.
        missing: event type → number of events that had not arrived. They were accepted, except in a dry run.
        untold: reason to leave a resource → number of such resources.
        erased: events that were left because they, or their resources, were erased.
    """

    store: AsyncStore
    advance: Callable[[int], None] = lambda _: None
    listed: int = 0
    happened: int = 0
    younger: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    untold: Counter[str] = field(default_factory=Counter)
    erased: int = 0

    async def run(self, api: AsyncApi, window: Window, wanted: Collection[str], *, dry: bool) -> None:
        """Accept the wanted events of the window that have not arrived, or only count them.

        Only lists of resources that have wanted types are read.

        Raises:
            ApiError: the platform refuses a page, or does not send it in time.
            TooLate: the backfill has taken too long.
        """
        happened = dict[MissableEvent, None]()
        for kind in [kind for kind in RESOURCES if kind in map(resource_of, wanted)]:
            async for resource in self._listed(api, kind):
                try:
                    events = must_have_happened(resource, kind, window, wanted)
                    happened |= dict.fromkeys(events)
                    all_since = must_have_happened(resource, kind, window._replace(until=_END), wanted)
                    self.younger += len(all_since) - len(events)
                except UnclearHistory as unclear:
                    self.untold[unclear.args[0]] += 1
        self.happened = len(happened)
        if time.time() > window.since.timestamp() + self.store.retention:
            raise TooLate("the backfill took so long that the store may have forgotten events at --since")
        for batch in _batches(list(happened)):
            await (self.count_missing if dry else self.accept_missing)(batch)
            self.advance(len(batch))

    async def _listed(self, api: AsyncApi, kind: Resource) -> AsyncIterator[ListedResource]:
        """Yield all resources that the platform lists."""
        read = getattr(api, kind.namespace).page
        async for page in pages(lambda query: retried(lambda: read(query), _PAGE_SECONDS)):
            self.listed += len(page.items)
            self.advance(len(page.items))
            for resource in page.items:
                yield resource

    async def count_missing(self, events: Sequence[MissableEvent]) -> None:
        """Count the events that have not arrived. Nothing is written."""
        missing, _ = await self._missing(events)
        self.missing.update(event.types[0] for event in missing)

    async def accept_missing(self, events: Sequence[MissableEvent]) -> None:
        """Accept the events that have not arrived, and count them.

        However often and wherever this runs, an event is accepted once. Events of one resource follow each other in
        the order of its states.
        """
        while events:
            missing, since = await self._missing(events)
            outcomes = await self._accept(missing, since) if missing else []
            results = list(zip(missing, outcomes, strict=True))
            self.missing.update(event.types[0] for event, outcome in results if outcome == b"accepted")
            self.erased += outcomes.count(b"erased")  # Erased since the store was read.
            events = [event for event, outcome in results if outcome == b"changed"]

    async def _accept(self, missing: Sequence[MissableEvent], since: str) -> Sequence[bytes]:
        events = [Event(event.types[0], event.resource) for event in missing]
        named = [(f"{BACKFILLED}{event.type}:{event.resource_id}", event, None) for event in events]
        store, now = self.store, datetime.now(UTC)
        arguments = accept_arguments(named, queue=store.queue, retention=store.retention, now=now, since=since)
        return await store.run("accept", arguments)  # type: ignore[no-any-return]

    async def _missing(self, events: Sequence[MissableEvent]) -> tuple[list[MissableEvent], str]:
        """Return the events that have not arrived, in their order, and the last entry of `by_time` before that.

        Erased events are counted, and not returned.
        """
        since, arrived, erased = "", set[tuple[str, str]](), set[tuple[str, str]]()
        already_read = dict.fromkeys((event.resource for event in events), 0)
        while already_read:
            last, *replies = await self.store.run("arrived", list(itertools.chain.from_iterable(already_read.items())))
            since = since or last.decode()
            for resource, (has_more, number, gone, *types) in zip(tuple(already_read), replies, strict=True):
                arrived |= {(resource, event_type.decode()) for event_type in types}
                erased |= {(resource, event_type.decode()) for event_type in gone}
                already_read[resource] += number
                if not has_more:
                    del already_read[resource]

        def absent_from(seen: Collection[tuple[str, str]], event: MissableEvent) -> bool:
            return all((event.resource, name) not in seen for name in event.types)

        not_arrived = [event for event in events if absent_from(arrived, event)]
        missing = [event for event in not_arrived if absent_from(erased, event)]
        self.erased += len(not_arrived) - len(missing)
        return missing, since


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


@click.command()
@click.option(
    "--since",
    type=MOMENT,
    required=True,
    help="Only events that happened since then: ISO 8601, or an age: 2h, 6d. It must be less than CREDHOOK_RETENTION "
    "ago, since forgotten events would be accepted again.",
)
@click.option(
    "--until",
    type=MOMENT,
    default="1h",
    show_default=True,
    help="Only events that happened before then. Younger events may still be on their way.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=TYPE,
    help="Only events of this type, such as verification.data; repeat it for several. Default: the types "
    "that handlers want.",
)
@click.option("--dry-run", is_flag=True, help="Only count the missing events; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def backfill(*, since: datetime, until: datetime, types: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Accept events that happened on the platform and never arrived.

    The command compares the platform's lists of issuances and presentations with the store. It accepts the events that
    each status implies, in the order of the states, and marks them as backfilled. Workers handle them like any other
    event. A late delivery of such an event is a duplicate.

    You may run it as often as you like, on several hosts at once, and again after an interruption. No event is accepted
    twice. Erased events are counted, and not accepted.
    """
    settings = WorkerSettings()
    if since >= until:
        raise click.UsageError("--since should be earlier than --until; the default of --until is one hour ago")
    oldest = datetime.now(UTC) - timedelta(seconds=settings.retention) + _DURATION
    if since < oldest:
        raise click.UsageError(
            f"--since should be {oldest:%Y-%m-%dT%H:%M} or later: the store forgets settled events after "
            f"CREDHOOK_RETENTION, {settings.retention} s, and would accept them again"
        )
    wanted = frozenset(types) or frozenset(load(settings.handlers).types)
    if not wanted:
        raise click.UsageError("the loaded handlers want no event type; name types with --type")
    comparison, stopped = Backfill(settings.open_store()), ""
    with open_store():
        try:
            asyncio.run(_run(comparison, settings, Window(since, until), wanted, dry_run=dry_run))
        except KeyboardInterrupt:
            stopped = "stopped by Ctrl-C"
        except ApiError as error:
            stopped = with_hint(error)
        except TooLate as error:
            stopped = str(error)
        except StoreError as error:
            # The last step may have been done, and only its reply lost.
            stopped = unanswered(error)
    _report(comparison, stopped, dry_run=dry_run, as_json=as_json)
    sys.exit(int(bool(stopped or comparison.untold)))


async def _run(
    comparison: Backfill, settings: WorkerSettings, window: Window, wanted: frozenset[str], *, dry_run: bool
) -> None:
    """Run the backfill within the fleet's rate limit, and call nothing during a pause of the platform."""
    breaker = CircuitBreaker.from_settings(comparison.store, settings)
    try:
        with bar("listing and comparing") as progress:
            comparison.advance = progress.update
            async with AsyncApi(Sender.from_settings(settings, guard=breaker.acquire)) as api:
                await comparison.run(api, window, wanted, dry=dry_run)
    finally:
        await breaker.aclose()
        await comparison.store.redis.aclose()


def _report(comparison: Backfill, stopped: str, *, dry_run: bool, as_json: bool) -> None:
    """Print one line about the accepted events, and one about each problem."""
    missing = comparison.missing.total()
    verb = "missing" if dry_run else "accepted"
    if as_json:
        facts = {
            "listed": comparison.listed,
            "happened": comparison.happened,
            "younger": comparison.younger,
            verb: missing,
            "types": dict(comparison.missing),
            "erased": comparison.erased,
        }
        click.echo(json.dumps({**facts, "untold": dict(comparison.untold), "complete": not stopped}))
    else:
        by_type = ", ".join(
            f"{number} {kind.removeprefix('openid4vc.')}" for kind, number in comparison.missing.items()
        )
        line = f"{verb} {missing} of {comparison.happened} events of {comparison.listed} issuances and presentations"
        click.echo(line + (f": {by_type}" if by_type else ""))
        if comparison.younger:
            younger = counted(comparison.younger, "event", "events")
            click.echo(f"left {younger} later than --until, which may still be on the way")
        if comparison.erased:
            click.echo(f"left {counted(comparison.erased, 'erased event', 'erased events')}")
    if comparison.untold:
        reasons = ", ".join(f"{number} {reason}" for reason, number in comparison.untold.items())
        click.echo(f"left {comparison.untold.total()} issuances and presentations: {reasons}", err=True)
    if stopped:
        click.echo(f"Error: {stopped}; accepted events stay, run the command again for the rest", err=True)
