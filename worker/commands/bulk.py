"""`credhook events replay` and `credhook events erase`: commands that change many events."""

import getpass
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final, cast

import click

from credhook.store import State
from credhook.store.job import job_id
from credhook.store.store import SyncStore
from credhook.worker.commands import search
from credhook.worker.commands.batches import ask, batched, report, work_through
from credhook.worker.commands.history import plain
from credhook.worker.commands.search import EventSummary, Selection
from credhook.worker.queue.replay import How, Replay, Settled
from credhook.worker.settings import HandlerSettings

#: The script's outcome → words for an event that was replayed, or was left.
REPLAYED: Final = {"replayed": ""}
NOT_REPLAYED: Final = {
    "open": "open",
    "unknown_type": "of unknown type",
    "no_resource": "whose id cannot be fetched",
    "unrelated": "that the handler does not want",
    "elsewhere": "of another queue",
    "changed": "changed meanwhile",
    "missing": "not in the store",
    "unreadable": "whose record cannot be read",
}
#: The script's outcome → words for an event that was erased, or was left.
ERASED: Final = {"erased": "", "held": "while a worker had it"}
NOT_ERASED: Final = {"changed": "changed meanwhile", "missing": "not in the store"}
#: Options of commands that change many events.
_BULK: Final = (
    *search.OPTIONS,
    search.ALL,
    click.option("--dry-run", is_flag=True, help="Only count the selected events, by state and type."),
    click.option(
        "--expect", type=click.IntRange(0), metavar="N", help="Change nothing unless --dry-run counts N events now."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end."),
)


@click.command()
@search.selecting(*_BULK)
@click.option(
    "--handler",
    "only_handler",
    metavar="NAME",
    help="Run this handler for events of the types that it wants. For a done event it runs alone, even if it is new. "
    "For any other event, the handlers that have not ended run as well. `credhook handlers list` prints the names.",
)
@click.option("--by", metavar="NAME", help="Who replays, for the event's history; by default user@host.")
@click.option("--now", "hurry", is_flag=True, help="Also make waiting events due at once, as --cause alone does.")
@click.option(
    "--renamed",
    is_flag=True,
    help="A handler was renamed or removed: no longer wait for it, and run the handlers that workers have now.",
)
@click.option("--yes", is_flag=True, help="Do not ask before all handlers of a done event run again.")
def replay(
    *,
    selection: Selection,
    dry_run: bool,
    expect: int | None,
    as_json: bool,
    only_handler: str | None,
    by: str | None,
    hurry: bool,
    renamed: bool,
    yes: bool,
) -> None:
    """Put settled and quarantined events back into the queue that CREDHOOK_QUEUE names.

    Attempts are counted from 1 again. Which handlers run depends on the state of the event:

    \b
    - dead: the handlers that gave up
    - done: all handlers, or only the handler of --handler
    - quarantined: all handlers, if this version knows the type
    - unhandled: replayed without this command, once a worker has the handler; or with --renamed
    - unreadable: all handlers, once you have repaired the record
    - open: not changed, but due at once with --cause or --now
    """  # noqa: D301  Click wants the character itself.
    if (only_handler is not None) + hurry + renamed > 1:
        raise click.UsageError("--handler, --now and --renamed exclude each other")
    with search.open_store() as store:
        wanted = frozenset[str]() if only_handler is None else _types_wanted(only_handler)
        events = search.read_page(store, selection).events[::-1]
        counted = events
        if wanted:
            counted = [event for event in events if event.type in wanted]
        elif only_handler is not None:
            counted = search.read_page(store, replace(selection, handler=only_handler)).events
        _count(counted, dry_run=dry_run, expect=expect, as_json=as_json)
        again = sum(event.state == State.DONE for event in events)
        if again and only_handler is None and not yes:
            ask(f"Done already: {again} of the {len(events)} selected; all their handlers would run again.")
        events += search.absent(store, selection)
        how: How = ""
        if renamed:
            how = "renamed"
        elif hurry or (selection.cause and only_handler is None):  # After a cause is fixed, waiting events are due.
            how = "now"
        put_back = Replay(store, by=_user() if by is None else by)

        def step(batch: Sequence[EventSummary]) -> Sequence[bytes]:
            settled = [Settled(event.webhook_id, event.state) for event in batch]
            return put_back(settled, how=how, handler=only_handler or "", types=wanted)

        report(work_through(events, step, "replaying"), "replayed", REPLAYED, NOT_REPLAYED, as_json=as_json)


def _count(events: Sequence[EventSummary], *, dry_run: bool, expect: int | None, as_json: bool) -> None:
    """Print the numbers and exit for a dry run. Otherwise fail if another number of events was expected."""
    if dry_run:
        for (state, kind), number in sorted(Counter((event.state, event.type) for event in events).items()):
            row = {"state": state, "type": kind, "events": number}
            click.echo(json.dumps(row) if as_json else plain(f"{number:>8}  {state:<11}  {kind}"))
        if not as_json:
            click.echo(f"{len(events):>8}  in all")
        sys.exit()
    if expect not in {None, len(events)}:
        raise click.ClickException(f"selected events now: {len(events)}, not {expect}; nothing was changed")


def _user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _types_wanted(handler: str) -> frozenset[str]:
    """Return the types that the handler wants; none if it is not loaded here."""
    from credhook.worker.handlers.loading import load  # It takes longer than finding a selection.

    loaded = {one.name: one.types for one in load(HandlerSettings().handlers).handlers}
    if handler not in loaded:
        known = f"loaded are {', '.join(sorted(loaded))}" if loaded else "no handlers are loaded"
        click.echo(f"{handler} is not loaded here, so only events that it has handled are replayed; {known}", err=True)
    return loaded.get(handler, frozenset())


@click.command()
@search.selecting(*_BULK, search.BY_HANDLER)
@click.option("--yes", is_flag=True, help="Do not ask first.")
def erase(*, selection: Selection, dry_run: bool, expect: int | None, as_json: bool, yes: bool) -> None:
    """Erase events and all data that the store keeps for them.

    Use --resource to erase the data of one issuance or presentation. Handlers must erase the data that they have
    stored elsewhere. If the platform repeats a delivery after its event was erased, the delivery is accepted as new
    and its handlers run again. An event that a worker holds is erased as well; a handler that is running for it may
    still finish.
    """
    with search.open_store() as store:
        events = search.read_page(store, selection).events[::-1]
        _count(events, dry_run=dry_run, expect=expect, as_json=as_json)
        if events and not yes:
            ask(f"Selected to be erased: {len(events)}; a repeated delivery would be accepted as new.")
        events += search.absent(store, selection)
        erasure = Erasure(store, selection)
        result = work_through(events, erasure, "erasing")
        if not result.stopped:
            erasure.finish(events)
        report(result, "erased", ERASED, NOT_ERASED, as_json=as_json)


class Erasure:
    """Erases the selected events, a few hundred in one script. Each step raises RedisError if Redis fails."""

    def __init__(self, store: SyncStore, selection: Selection) -> None:
        self._store = store
        self._selection = selection

    def __call__(self, batch: Sequence[EventSummary]) -> Sequence[bytes]:
        """Erase these events and return the outcome of each."""
        arguments: list[str] = []
        for event in batch:
            # An event that was selected by its state is kept if it has left that state since.
            state = event.state if self._selection.states else ""
            arguments += event.webhook_id, job_id(self._store.queue, event.webhook_id), state
        return cast(Sequence[bytes], self._store.run("erase", arguments))

    def finish(self, events: Sequence[EventSummary]) -> None:
        """Erase what lies outside the records: of events whose record named no index, and of the selected resource."""
        if strays := {event.webhook_id for event in events if event.state in {State.UNREADABLE, ""}}:
            self._forget(strays)
        if self._selection.resource is not None:
            self._forget_resource(self._selection.resource)

    def _forget(self, strays: Collection[str]) -> None:
        """Remove the events from every event index and from RQ's started jobs, and free their locks."""
        store, redis = self._store, self._store.redis
        names, jobs = {one.encode() for one in strays}, {job_id(store.queue, one).encode() for one in strays}
        pipeline = redis.pipeline(transaction=False)
        for page in batched(names, search.PAGE):
            for key in store.keys.event_indexes():
                pipeline.zrem(key, *page)
        for resource, lock in redis.hscan_iter(store.keys.locks, count=search.PAGE):
            if lock.rsplit(b" ", 3)[0] in names:
                pipeline.hdel(store.keys.locks, resource)
        for execution, _ in redis.zscan_iter(store.keys.started, count=search.PAGE):
            if execution.partition(b":")[0] in jobs:
                pipeline.zrem(store.keys.started, execution)
        pipeline.execute()

    def _forget_resource(self, resource: str) -> None:
        """Erase what handlers have seen of the resource, and the conflicting deliveries that name it."""
        keys, redis = self._store.keys, self._store.redis
        redis.delete(keys.resource + resource)
        for page in batched(redis.scan_iter(match=keys.conflict + "*", count=search.PAGE), search.PAGE):
            pipeline = redis.pipeline(transaction=False)
            for key in page:
                pipeline.hkeys(key)
            for key, fields in zip(page, pipeline.execute(), strict=True):
                if theirs := [field for field in fields if field.partition(b" ")[2] == resource.encode()]:
                    redis.hdel(key, *theirs)
