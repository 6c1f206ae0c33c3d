"""`credhook causes`: why attempts fail, for people and (`--json`) for programs."""

import json
from typing import Final

import click

from credhook.settings import LedgerSettings
from credhook.store import MOST_CAUSES
from credhook.worker.commands.events.tables import print_table
from credhook.worker.commands.history.causes import causes as read_causes
from credhook.worker.commands.search.reading import ledger

_NUMBERS: Final = ("open", "given up", "failures")
_COLUMNS: Final = ("cause", "handler", "error", "at", *_NUMBERS, "first (UTC)", "last (UTC)", "version")


@click.command()
@click.option("--limit", type=click.IntRange(1, MOST_CAUSES), default=100, help="At most so many; 100 by default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def causes(*, limit: int, as_json: bool) -> None:
    """Print why attempts fail, the cause first that has failed last.

    Failures have the same cause if the same handler (or the fetch, or a worker process that has died) has failed with
    an error of the same class, and status, in the same function of its author's code. `open` and `given up` say how
    many events stand with it now; `failures`, how often it has made an attempt fail. `credhook events list`, `replay`
    and `erase` take a cause as --cause.
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
    print_table(_COLUMNS, rows)
    if left > 0:
        click.echo(f"{left} more; raise --limit to see them")
    if standing := next((cause.id for cause in found if cause.open or cause.given_up), None):
        click.echo(
            f"credhook events list --cause {standing} lists its events; once it is mended, "
            f"credhook events replay --cause {standing} runs them again"
        )
