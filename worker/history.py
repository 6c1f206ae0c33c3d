"""`credhook events`: what the ledger remembers, for people and (`--json`) for programs."""

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click
from redis import Redis
from redis.exceptions import RedisError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from receiver.ledger import EVENT, HANDLER, Index, State
from receiver.ledger.connection import open_redis_sync
from receiver.ledger.settings import LedgerSettings

#: Records fetched in one round trip.
_PAGE: Final = 500


@click.group()
def events() -> None:
    """Look at what the ledger remembers."""


@events.command("list")
@click.option("--state", type=click.Choice([state.value for state in State]), help="Only events in this state.")
@click.option("--type", "event_type", metavar="TYPE", help="Only events of this type.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Print at most so many, newest first."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_events(*, state: str | None, event_type: str | None, limit: int, as_json: bool) -> None:
    """Print events, newest first."""
    found = [
        record
        for record in _records(_connected())
        if state in {None, record["state"]} and event_type in {None, record["type"]}
    ]
    found.sort(key=lambda record: record["received_at"], reverse=True)
    if as_json:
        for record in found[:limit]:
            click.echo(json.dumps(record))
        return
    if not found:
        click.echo("no events")
        return
    table = Table("webhook-id", "type", "resource", "state", "received", "attempts", "error")
    for record in found[:limit]:
        shown = (*(record[name] for name in ("webhook_id", "type", "resource_id", "state")), record["received_at"][:19])
        # As text: an id may look like markup.
        table.add_row(*map(Text, (*shown, str(record["attempts"]), record["error"] or "")))
    Console(width=None if sys.stdout.isatty() else 180).print(table)
    if len(found) > limit:
        click.echo(f"{len(found) - limit} more; raise --limit to see them")


@events.command("show")
@click.argument("webhook_id")
def show_event(webhook_id: str) -> None:
    """Print all that is remembered of one event, as JSON."""
    record = _record(_connected(), webhook_id)
    if record is None:
        raise click.ClickException(f"the ledger has no event {webhook_id}")
    click.echo(json.dumps(record, indent=2))


def _connected() -> Redis:
    redis = open_redis_sync(LedgerSettings().redis_url.get_secret_value())
    try:
        redis.ping()
    except RedisError as error:
        raise click.ClickException(f"Redis does not answer ({type(error).__name__}); check REDIS_URL") from error
    return redis


def _records(redis: Redis) -> Iterator[dict[str, Any]]:
    page: list[str] = []
    for key in redis.scan_iter(match=EVENT + "*", count=_PAGE):
        page.append(key.decode().removeprefix(EVENT))
        if len(page) == _PAGE:
            yield from _fetch(redis, page)
            page = []
    yield from _fetch(redis, page)


def _record(redis: Redis, webhook_id: str) -> dict[str, Any] | None:
    return next(iter(_fetch(redis, [webhook_id])), None)


def _fetch(redis: Redis, webhook_ids: Iterable[str]) -> Iterator[dict[str, Any]]:
    wanted, index = list(webhook_ids), Index(LedgerSettings().queue)
    pipeline = redis.pipeline(transaction=False)
    for webhook_id in wanted:
        pipeline.hgetall(EVENT + webhook_id)
        pipeline.zscore(index.leases, webhook_id)
    replies = pipeline.execute()
    for webhook_id, fields, lease in zip(wanted, replies[::2], replies[1::2], strict=True):
        if fields:
            text = {name.decode(): value.decode() for name, value in fields.items()}
            yield describe(webhook_id, text, lease=lease)


def describe(webhook_id: str, fields: dict[str, str], *, lease: float | None = None) -> dict[str, Any]:
    """A ledger record as people read it: times in UTC, handlers by name. Pure."""
    return {
        "webhook_id": webhook_id,
        "type": fields["type"],
        "resource_id": fields["resource"],
        "state": fields["state"],
        "received_at": _time(fields["received"]),
        "settled_at": _time(fields.get("settled")),
        "next_attempt_at": _time(fields.get("due")),
        "leased_until": None if lease is None else _time(str(int(lease))),
        "milliseconds": int(fields["settled"]) - int(fields["received"]) if "settled" in fields else None,
        # A settled event that took one attempt does not spend memory on saying so.
        "attempts": int(fields.get("attempts", "settled" in fields)),
        "error": fields.get("error"),
        "handlers": {name.removeprefix(HANDLER): how for name, how in fields.items() if name.startswith(HANDLER)},
    }


def _time(milliseconds: str | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC).isoformat(timespec="milliseconds")
