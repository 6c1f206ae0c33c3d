"""`credhook events`: what the ledger remembers, for people and (`--json`) for programs."""

import json
import shlex
from collections.abc import Iterable
from dataclasses import replace as but
from importlib import import_module
from typing import Any, Final

import click

from credhook.settings import LedgerSettings
from credhook.worker.commands.events.options import of_handler, selecting
from credhook.worker.commands.events.tables import plain, print_counts, print_table
from credhook.worker.commands.history.records import raw, records
from credhook.worker.commands.history.story import lines, story_of
from credhook.worker.commands.history.times import time_of
from credhook.worker.commands.search.counting import count
from credhook.worker.commands.search.reading import Page, ledger, read_page
from credhook.worker.commands.search.selection import Selection

#: Events that `list` prints where nobody says how many.
_SHOWN: Final = 100
#: Events that `list` looks at for a table before it says how far it has come: a few tenths of a second.
_PATIENCE: Final = 20_000
#: Commands in modules of their own name.
_ELSEWHERE: Final = frozenset({"backfill", "erase", "replay", "tail"})
_COLUMNS: Final = ("webhook-id", "type", "resource", "state", "received (UTC)", "attempts", "error")


class _Events(click.Group):
    """`list` and `show` are here. What the others need, above all to load handlers, takes longer than a list does."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name them all."""
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import it, unless it is here."""
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(f"credhook.worker.commands.events.{cmd_name}"), cmd_name)
        return command


@click.group(cls=_Events)
def events() -> None:
    """Look at what the ledger remembers, watch it, replay it, erase it, and accept what never arrived."""


@events.command("list")
@selecting
@of_handler
@click.option("--count", "counting", is_flag=True, help="Print how many there are of each state and type instead.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line; --after the `cursor` of the last comes the rest."
)
def list_events(*, selection: Selection, handler: str | None, counting: bool, as_json: bool) -> None:
    """Print events, the newest first; 100 of them unless --limit says otherwise."""
    selection = but(selection, handler=handler)
    with ledger() as (redis, index):
        if counting:
            numbers = count(redis, index, selection, retention=LedgerSettings().retention)
            print_counts(numbers, as_json=as_json)
            return
        limited = but(selection, limit=selection.limit or _SHOWN)
        page = read_page(redis, index, limited, patience=None if as_json else _PATIENCE)
        cursors = {event.webhook_id: str(event.cursor) for event in page.events}
        found = records(redis, index, cursors)
        if as_json:
            for record in found:
                click.echo(json.dumps({**record, "cursor": cursors[record["webhook_id"]]}))
            return
        _print_page(page, found, selection)


def _print_page(page: Page, found: Iterable[dict[str, Any]], selection: Selection) -> None:
    """Print it as a table, and what is to be typed for the next."""
    if page.events:
        print_table(_COLUMNS, [_cells(record) for record in found])
    elif page.after is None:
        click.echo("no events")
    if page.looked_back_to is not None:
        click.echo(f"looked back to {(time_of(page.looked_back_to) or '')[:19]} UTC, and found {len(page.events)}")
    if page.after is not None:
        options = [*selection.options(), "--after", str(page.after)]
        click.echo(f"for what came before: credhook events list {shlex.join(options)}")


def _cells(record: dict[str, Any]) -> list[str]:
    attempts = "" if record["attempts"] is None else str(record["attempts"])
    cells = [record[name] or "" for name in ("webhook_id", "type", "resource_id", "state")]
    return [*cells, (record["received_at"] or "")[:19], attempts, record["error"] or ""]


@events.command("show")
@click.argument("webhook_id")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, on one line.")
def show_event(webhook_id: str, *, as_json: bool) -> None:
    """Print all that is remembered of one event: deliveries, attempts, handlers, replays, deaths of its workers.

    Of an event that was done at once nothing is told but that. Times are in UTC.
    """
    with ledger() as (redis, index):
        record = next(records(redis, index, [webhook_id]), None)
        if record is None:
            raise click.ClickException(f"the ledger has no event {webhook_id}")
        record |= story_of(redis, raw(webhook_id))
    if as_json:
        click.echo(json.dumps(record))
        return
    for line in lines(record):
        click.echo(plain(line))
