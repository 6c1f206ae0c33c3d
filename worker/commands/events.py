"""`credhook events` and `credhook causes`: show the store's events, for people and (`--json`) for programs."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from typing import Final

import click
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from credhook.events import RESOURCES, path_advice
from credhook.store import FETCH
from credhook.store.causes import READ_LIMIT
from credhook.store.causes import causes as read_causes
from credhook.store.erase import erasures
from credhook.store.errors import STORE_ERRORS
from credhook.store.history import event_with_history, lines, records, time_of
from credhook.store.selection import Selection, read_page
from credhook.store.store import SyncStore
from credhook.terminal import plain
from credhook.worker.commands import options
from credhook.worker.commands.bulk import erase, replay

#: Events that `list` prints without --limit.
_LIMIT: Final = 100
#: Events that `list` reads for a table before it reports how far it has looked back, after a few tenths of a second.
_READ_LIMIT: Final = 20_000
#: The fields of an event that its row shows.
_COLUMNS: Final = ("webhook_id", "type", "resource_id", "state", "received_at", "attempts", "error")
_CAUSE_COLUMNS: Final = (
    *("cause", "handler", "error", "at", "open", "given up"),
    *("first (UTC)", "last (UTC)", "version"),
)
#: Seconds between two tries to reach Redis.
_RETRY_SECONDS: Final = 0.5
#: Seconds of silence after which Redis is pinged. After the same time without a reply, the connection counts as lost.
_SILENT_SECONDS: Final = 5.0


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], none: str) -> None:
    """Print a table, or `none` if it has no rows. Control characters in a cell are escaped."""
    if not rows:
        click.echo(none)
        return
    cells = [tuple(header), *(tuple(map(plain, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


#: The commands that need the API client, whose import takes longer than a list.
_CALLING: Final = ("backfill", "export", "run")


class _Events(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_CALLING])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _CALLING:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(f"credhook.worker.commands.{cmd_name}"), cmd_name)
        return command


@click.group(cls=_Events, commands=[erase, replay])
def events() -> None:
    """List, show, watch, export, run, replay and erase events, and accept missing ones."""


@events.command("list")
@options.selecting(*options.OPTIONS, options.BY_HANDLER)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line. Pass its `cursor` to --after for the rest."
)
def list_events(*, selection: Selection, as_json: bool) -> None:
    """Print events, newest first; 100 of them unless --limit says otherwise. With WEBHOOK_ID, only these events."""
    limited = replace(selection, limit=selection.limit or _LIMIT)
    with options.open_store() as store:
        page = read_page(store, limited, most_read=None if as_json else _READ_LIMIT)
        cursors = {event.webhook_id: str(event.cursor) for event in page.events}
        shown = list(records(store, cursors))
    if as_json:
        for record in shown:
            click.echo(json.dumps({**record, "cursor": cursors[record["webhook_id"]]}))
        return
    if shown or page.after is None:
        rows = [["" if record[name] is None else str(record[name]) for name in _COLUMNS] for record in shown]
        print_table(_COLUMNS, rows, f"the store of the queue {store.queue} has no such events")
    if page.looked_back_to is not None:
        click.echo(f"looked back to {(time_of(page.looked_back_to) or '')[:19]} UTC, and found {len(shown)}")
    if page.after is not None:
        click.echo(f"for earlier events, repeat the command with --after {page.after}")


@events.command("show")
@click.argument("webhook_id", type=options.AN_ID)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_event(webhook_id: str, *, as_json: bool) -> None:
    """Print everything that the store has about one event: attempts, handlers, replays, deaths of its workers.

    An event that was done at the first attempt has no history. Times are in UTC.
    """
    with options.open_store() as store:
        record = event_with_history(store, webhook_id)
    if record is None:
        raise options.no_event(store, webhook_id)
    for line in [json.dumps(record)] if as_json else lines(record):
        click.echo(plain(line))


@events.command("erasures")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def list_erasures(*, as_json: bool) -> None:
    """Print who erased how many events of which types, and when: the last 1,000 erasures, oldest first.

    `a resource` is an issuance or a presentation that was erased as a whole.
    """
    with options.open_store() as store:
        recorded = list(erasures(store))
    if as_json:
        for erasure in recorded:
            click.echo(json.dumps(erasure))
        return
    rows = []
    for erasure in recorded:
        types = [f"{number} {kind.removeprefix('openid4vc.')}" for kind, number in sorted(erasure["types"].items())]
        what = ", ".join([*["a resource"] * erasure["whole"], *types])
        rows.append([(erasure["at"] or "")[:19].replace("T", " "), erasure["by"], what])
    print_table(("at (UTC)", "by", "erased"), rows, "no erasures")


class EventChange(BaseModel):
    """A change of an event.

    Attributes:
        at: when it happened by Redis's clock, in ms since the epoch.
        attempt: the number of the attempt that has ended, if any.
        milliseconds: time since the event was received, if an attempt has ended.
        retry_in: ms until the next attempt, if the event waits for one.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    at: int
    webhook_id: str = Field(validation_alias="id")
    state: str
    type: str
    resource_id: str = Field(validation_alias="resource")
    attempt: int | None = None
    milliseconds: int | None = Field(None, validation_alias="age")
    retry_in: int | None = Field(None, validation_alias="wait")
    error: str = ""
    replayed: bool = False
    backfilled: bool = False


@events.command()
@options.selecting(*options.WATCHING)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def tail(*, selection: Selection, as_json: bool) -> None:
    """Print each change of an event from now on, until Ctrl-C. With WEBHOOK_ID, only changes of these events.

    There is a line for each event that is accepted, replayed or quarantined, and for each attempt: its result, the time
    since the event was received, the error, and when the next attempt is. Changes are not stored. If
    the connection to Redis is lost, changes in between are not shown, and a line reports that.
    """
    with options.open_store() as store, suppress(KeyboardInterrupt):
        click.echo(f"watching {store.keys.queue}; Ctrl-C ends it", err=True)
        for change in changes(store):
            if _is_selected(change, selection):
                click.echo(json.dumps(change.model_dump(mode="json")) if as_json else _line(change))


def _line(change: EventChange) -> str:
    number = change.attempt or 0
    parts = (
        datetime.fromtimestamp(change.at / 1000, UTC).isoformat(timespec="milliseconds")[11:23],
        change.state.ljust(11),
        change.type.removeprefix("openid4vc.").ljust(24),
        change.resource_id,
        change.webhook_id,
        "replayed" if change.replayed else "",
        "" if change.milliseconds is None else f"{change.milliseconds} ms",
        f"attempt {number}" if number > 1 or (number and change.error) else "",
        change.error,
        "" if change.retry_in is None else f"again in {change.retry_in / 1000:.1f} s",
    )
    return plain("  ".join(filter(None, parts)))


def _is_selected(change: EventChange, selection: Selection) -> bool:
    return (
        (not selection.states or change.state in selection.states)
        and (not selection.types or change.type in selection.types)
        and selection.resource in {None, change.resource_id}
        and (not selection.ids or change.webhook_id in selection.ids)
    )


def changes(store: SyncStore) -> Iterator[EventChange]:
    """Yield the changes for ever. Report outages of Redis on standard error."""
    lost = False
    while True:
        try:
            with store.redis.pubsub() as subscription:  # type: ignore[no-untyped-call]  # redis-py's gap
                subscription.subscribe(store.keys.changes)
                while True:
                    message = subscription.get_message(timeout=_SILENT_SECONDS)
                    if message is None:
                        subscription.ping()
                        message = subscription.get_message(timeout=_SILENT_SECONDS)
                    if message is None:
                        raise TimeoutError
                    if lost:
                        click.echo("Redis answers again; changes in between are not shown", err=True)
                        lost = False
                    if message["type"] == "message":
                        with suppress(ValidationError):  # Another program has published it.
                            yield EventChange.model_validate_json(message["data"])
        except STORE_ERRORS as error:
            if not lost:
                click.echo(f"Redis does not answer ({type(error).__name__}); trying again", err=True)
            lost = True
            time.sleep(_RETRY_SECONDS)


@click.command()
@click.option("--limit", type=click.IntRange(1), default=100, help="At most this many; 100 by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def causes(*, limit: int, as_json: bool) -> None:
    """Print why attempts fail, the most recent cause first.

    Failures have the same cause if the same handler failed with an error of the same class, and status, in the same
    function. The handler may also be the fetch, or a worker process that died. `open` and `given up` count the events
    that have the cause now, of the latest 20,000 that were retried and of the latest 20,000 that were given up.
    `credhook events list`, `replay` and `erase` take a cause as --cause, and read all events.
    """
    with options.open_store() as store:
        open_causes, complete = read_causes(store)
    if as_json:
        for cause in open_causes[:limit]:
            click.echo(json.dumps(cause._asdict()))
        return
    rows = []
    for cause in open_causes[:limit]:
        times = [(at or "")[:19].replace("T", " ") for at in (cause.first, cause.last)]
        counts = str(cause.open), str(cause.given_up)
        rows.append([cause.id, cause.handler, cause.error, cause.at, *counts, *times, cause.version])
    print_table(_CAUSE_COLUMNS, rows, "no causes: no event has an open failure")
    if any(cause.handler == FETCH and cause.error == "NotFound 404" for cause in open_causes[:limit]):
        click.echo(f"if every fetch gets a 404, {path_advice(*(resource.name for resource in RESOURCES))}")
    if len(open_causes) > limit:
        click.echo(f"{len(open_causes) - limit} more; raise --limit to see them")
    if not complete:
        click.echo(f"counted among the latest {READ_LIMIT:,} events that were retried, and as many that were given up")
