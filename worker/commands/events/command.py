"""`credhook events` and `credhook causes`: show what the store remembers, for people and (`--json`) for programs."""

import json
import shlex
from collections.abc import Iterable
from dataclasses import replace as but
from importlib import import_module
from typing import Any, Final

import click

from credhook.settings import LedgerSettings
from credhook.store import MOST_CAUSES
from credhook.worker.commands.events.options import by_handler, selecting
from credhook.worker.commands.events.tables import plain, print_counts, print_table
from credhook.worker.commands.history.causes import causes as read_causes
from credhook.worker.commands.history.records import raw, records, time_of
from credhook.worker.commands.history.story import lines, story_of
from credhook.worker.commands.search.search import Page, count, ledger, read_page
from credhook.worker.commands.search.selection import Selection

#: Events that `list` prints without --limit.
_LIMIT: Final = 100
#: Events that `list` reads for a table before it says how far it has come: a few tenths of a second.
_READ_LIMIT: Final = 20_000
#: Commands in modules of their own name. They import handlers or the API client, which takes longer than a list.
_ELSEWHERE: Final = frozenset({"backfill", "erase", "replay", "tail"})
_COLUMNS: Final = ("webhook-id", "type", "resource", "state", "received (UTC)", "attempts", "error")
_CAUSE_COLUMNS: Final = (
    *("cause", "handler", "error", "at", "open", "given up", "failures"),
    *("first (UTC)", "last (UTC)", "version"),
)


class _EventCommands(click.Group):
    """The commands of this module and of `_ELSEWHERE`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(f"credhook.worker.commands.events.{cmd_name}"), cmd_name)
        return command


@click.group(cls=_EventCommands)
def events() -> None:
    """List, show, watch, replay and erase events, and accept missing ones."""


@events.command("list")
@selecting
@by_handler
@click.option("--count", "counting", is_flag=True, help="Print how many there are of each state and type instead.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line. Pass its `cursor` to --after for the rest."
)
def list_events(*, selection: Selection, handler: str | None, counting: bool, as_json: bool) -> None:
    """Print events, newest first; 100 of them unless --limit says otherwise."""
    selection = but(selection, handler=handler)
    with ledger() as (redis, index):
        if counting:
            numbers = count(redis, index, selection, retention=LedgerSettings().retention)
            print_counts(numbers, as_json=as_json)
            return
        limited = but(selection, limit=selection.limit or _LIMIT)
        page = read_page(redis, index, limited, patience=None if as_json else _READ_LIMIT)
        cursors = {event.webhook_id: str(event.cursor) for event in page.events}
        found = records(redis, index, cursors)
        if as_json:
            for record in found:
                click.echo(json.dumps({**record, "cursor": cursors[record["webhook_id"]]}))
            return
        _print_page(page, found, selection)


def _print_page(page: Page, found: Iterable[dict[str, Any]], selection: Selection) -> None:
    """Print the page as a table, and the command for the next page."""
    if page.events:
        print_table(_COLUMNS, [_cells(record) for record in found])
    elif page.after is None:
        click.echo("no events")
    if page.looked_back_to is not None:
        click.echo(f"looked back to {(time_of(page.looked_back_to) or '')[:19]} UTC, and found {len(page.events)}")
    if page.after is not None:
        options = [*selection.options(), "--after", str(page.after)]
        click.echo(f"for earlier events: credhook events list {shlex.join(options)}")


def _cells(record: dict[str, Any]) -> list[str]:
    attempts = "" if record["attempts"] is None else str(record["attempts"])
    cells = [record[name] or "" for name in ("webhook_id", "type", "resource_id", "state")]
    return [*cells, (record["received_at"] or "")[:19], attempts, record["error"] or ""]


@events.command("show")
@click.argument("webhook_id")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_event(webhook_id: str, *, as_json: bool) -> None:
    """Print everything known about one event: deliveries, attempts, handlers, replays, deaths of its workers.

    An event that was done at the first attempt has no history. Times are in UTC.
    """
    with ledger() as (redis, index):
        record = next(records(redis, index, [webhook_id]), None)
        if record is None:
            raise click.ClickException(f"the store has no event {webhook_id}")
        record |= story_of(redis, index, raw(webhook_id))
    if as_json:
        click.echo(json.dumps(record))
        return
    for line in lines(record):
        click.echo(plain(line))


@click.command()
@click.option("--limit", type=click.IntRange(1, MOST_CAUSES), default=100, help="At most this many; 100 by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def causes(*, limit: int, as_json: bool) -> None:
    """Print why attempts fail, the most recent cause first.

    Failures have the same cause if the same handler failed with an error of the same class, and status, in the same
    function. The handler may also be the fetch, or a worker process that died. `open` and `given up` count the events
    that have the cause now; `failures` counts the attempts that it made fail. `credhook events list`, `replay` and
    `erase` take a cause as --cause.
    """
    with ledger() as (redis, index):
        found = read_causes(redis, index, retention=LedgerSettings().retention, limit=limit)
        left = int(redis.zcard(index.causes)) - len(found) if len(found) == limit else 0
    if as_json:
        for cause in found:
            click.echo(json.dumps(cause.as_json()))
        return
    if not found:
        click.echo("no causes: nothing has failed")
        return
    rows = []
    for cause in found:
        numbers = [str(number) for number in (cause.open, cause.given_up, cause.failures)]
        times = [moment.isoformat(" ", "seconds")[:19] if moment else "" for moment in (cause.first, cause.last)]
        versions = cause.version if cause.since == cause.version else f"{cause.version}, since {cause.since}"
        rows.append([cause.id, cause.handler, cause.error, cause.at, *numbers, *times, versions])
    print_table(_CAUSE_COLUMNS, rows)
    if left > 0:
        click.echo(f"{left} more; raise --limit to see them")
    if current := next((cause.id for cause in found if cause.open or cause.given_up), None):
        click.echo(
            f"credhook events list --cause {current} lists its events; once it is fixed, "
            f"credhook events replay --cause {current} runs them again"
        )
