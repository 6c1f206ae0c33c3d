"""`credhook events`: what the ledger remembers, for people and (`--json`) for programs."""

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace as but
from datetime import UTC, datetime
from typing import Any, Final

import click
from redis import Redis

from credhook.ledger import BLAMED, EVENT, HANDLER, LATEST, ONLY, Index, State, ending
from credhook.settings import LedgerSettings
from credhook.worker.commands.events.batches import batched
from credhook.worker.commands.events.counting import count
from credhook.worker.commands.events.erase import erase
from credhook.worker.commands.events.options import of_handler, selecting
from credhook.worker.commands.events.reading import PAGE, Page, ledger, raw, read_page
from credhook.worker.commands.events.reconcile import reconcile
from credhook.worker.commands.events.replay import replay
from credhook.worker.commands.events.selection import Selection
from credhook.worker.commands.events.tables import plain, print_counts, print_table
from credhook.worker.commands.events.tail import tail
from credhook.worker.commands.history.story import lines, story_of

#: Events that `list` prints where nobody says how many.
_SHOWN: Final = 100
#: Events that `list` looks at for a table before it says how far it has come: a few tenths of a second.
_PATIENCE: Final = 20_000
_COLUMNS: Final = ("webhook-id", "type", "resource", "state", "received", "attempts", "error")
#: Digits of the longest number in a record.
_DIGITS: Final = 15


@click.group()
def events() -> None:
    """Look at what the ledger remembers, watch it, replay it, erase it, and accept what never arrived."""


events.add_command(replay)
events.add_command(erase)
events.add_command(reconcile)
events.add_command(tail)


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
        records = _records(redis, index, cursors)
        if as_json:
            for record in records:
                click.echo(json.dumps({**record, "cursor": cursors[record["webhook_id"]]}))
            return
        _print_page(page, records, selection)


def _print_page(page: Page, records: Iterable[dict[str, Any]], selection: Selection) -> None:
    """Print it as a table, and what is to be typed for the next."""
    if page.events:
        print_table(_COLUMNS, [_cells(record) for record in records])
    elif page.after is None:
        click.echo("no events")
    if page.looked_back_to is not None:
        click.echo(f"looked back to {(_time(page.looked_back_to) or '')[:19]}, and found {len(page.events)}")
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
        record = next(_records(redis, index, [webhook_id]), None)
        if record is None:
            raise click.ClickException(f"the ledger has no event {webhook_id}")
        record |= story_of(redis, raw(webhook_id))
    if as_json:
        click.echo(json.dumps(record))
        return
    for line in lines(record):
        click.echo(plain(line))


def _records(redis: Redis, index: Index, webhook_ids: Iterable[str]) -> Iterator[dict[str, Any]]:
    for page in batched(webhook_ids, PAGE):
        pipeline = redis.pipeline(transaction=False)
        for webhook_id in page:
            pipeline.hgetall(raw(EVENT + webhook_id))
            pipeline.zscore(index.leases, raw(webhook_id))
        replies = pipeline.execute(raise_on_error=False)
        for webhook_id, fields, lease in zip(page, replies[::2], replies[1::2], strict=True):
            if isinstance(fields, Exception):  # It is no hash: somebody else has written it.
                yield describe(webhook_id, {"state": State.UNREADABLE, "error": "Unreadable: no hash"})
            elif fields:
                text = {_text(name): _text(value) for name, value in fields.items()}
                yield describe(webhook_id, text, lease=lease if isinstance(lease, float) else None)


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def describe(webhook_id: str, fields: dict[str, str], *, lease: float | None = None) -> dict[str, Any]:
    """A ledger record as people read it: times in UTC, handlers by name; null where it cannot be read. Pure."""
    received, settled = _number(fields.get("received")), _number(fields.get("settled"))
    ended = {name.removeprefix(HANDLER): ending(how) for name, how in fields.items() if name.startswith(HANDLER)}
    return {
        "webhook_id": webhook_id,
        "type": fields.get("type"),
        "resource_id": fields.get("resource"),
        "state": fields.get("state"),
        "received_at": _time(received),
        "settled_at": _time(settled),
        "next_attempt_at": _time(_number(fields.get("due"))),
        "leased_until": None if lease is None or not 0 < lease <= LATEST else _time(int(lease)),
        "milliseconds": settled - received if settled is not None and received is not None else None,
        # A settled event that took one attempt does not spend memory on saying so.
        "attempts": _number(fields.get("attempts", str(int("settled" in fields)))),
        "error": fields.get("error"),
        "only": fields.get(ONLY),
        "reconciled": "reconciled" in fields,
        "handlers": {name: how for name, (how, _) in ended.items()},
        "causes": {name.removeprefix(BLAMED): one for name, one in fields.items() if name.startswith(BLAMED)},
        "duplicates": _number(fields.get("again", "0")),
        "last_duplicate_at": _time(_number(fields.get("again_at"))),
        "handler_milliseconds": {name: took for name, (_, took) in ended.items() if took is not None},
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None or milliseconds > LATEST:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
