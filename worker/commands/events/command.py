"""`credhook events`: what the ledger remembers, for people and (`--json`) for programs."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace as but
from datetime import UTC, datetime
from typing import Any, Final

import click
from redis import Redis
from rich.table import Table

from credhook.ledger import EVENT, HANDLER, LATEST, ONLY, Index, State
from credhook.worker.commands.events.batches import batched
from credhook.worker.commands.events.erase import erase
from credhook.worker.commands.events.options import selecting
from credhook.worker.commands.events.reading import PAGE, find, ledger, raw
from credhook.worker.commands.events.replay import replay
from credhook.worker.commands.events.selection import Selection
from credhook.worker.commands.events.tables import plain, print_counts, print_table

#: Events that `list` prints where nobody says how many.
_SHOWN: Final = 100
#: Digits of the longest number in a record.
_DIGITS: Final = 15


@click.group()
def events() -> None:
    """Look at what the ledger remembers, replay it, erase it."""


events.add_command(replay)
events.add_command(erase)


@events.command("list")
@selecting
@click.option("--count", "counting", is_flag=True, help="Print how many there are of each state and type instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_events(*, selection: Selection, counting: bool, as_json: bool) -> None:
    """Print events, the newest first; 100 of them unless --limit says otherwise."""
    with ledger() as (redis, index):
        if counting:
            print_counts(find(redis, index, selection), as_json=as_json)
            return
        found = sorted(find(redis, index, but(selection, limit=None)), key=lambda event: event.received, reverse=True)
        shown = found[: selection.limit or _SHOWN]
        records = _records(redis, index, (event.webhook_id for event in shown))
        if as_json:
            for record in records:
                click.echo(json.dumps(record))
            return
        if not shown:
            click.echo("no events")
            return
        table = Table("webhook-id", "type", "resource", "state", "received", "attempts", "error")
        for record in records:
            cells = [record[name] or "" for name in ("webhook_id", "type", "resource_id", "state")]
            attempts = "" if record["attempts"] is None else str(record["attempts"])
            cells += (record["received_at"] or "")[:19], attempts, record["error"] or ""
            table.add_row(*map(plain, cells))
        print_table(table)
        if len(found) > len(shown):
            click.echo(f"{len(found) - len(shown)} more; raise --limit to see them")


@events.command("show")
@click.argument("webhook_id")
def show_event(webhook_id: str) -> None:
    """Print all that is remembered of one event, as JSON."""
    with ledger() as (redis, index):
        record = next(_records(redis, index, [webhook_id]), None)
    if record is None:
        raise click.ClickException(f"the ledger has no event {webhook_id}")
    click.echo(json.dumps(record, indent=2))


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
        "handlers": {name.removeprefix(HANDLER): how for name, how in fields.items() if name.startswith(HANDLER)},
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None or milliseconds > LATEST:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
