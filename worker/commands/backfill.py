"""`credhook events backfill`: accept events that the platform lists and no delivery has brought."""

import asyncio
import json
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from credhook.store.errors import StoreError
from credhook.store.health import unanswered
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError
from credhook.worker.backfill.run import Backfill, BackfillResult, TooLate, Window
from credhook.worker.commands.batches import bar
from credhook.worker.commands.search import MOMENT, TYPE, open_store
from credhook.worker.handlers.loading import load
from credhook.worker.platform.circuit_breaker import CircuitBreaker
from credhook.worker.settings import WorkerSettings

#: How long a backfill may take before the store forgets events of its window.
_DURATION: Final = timedelta(hours=1)


@click.command()
@click.option(
    "--since",
    type=MOMENT,
    required=True,
    help="Only events that happened since then: ISO 8601, or an age: 2h, 6d. Less than CREDHOOK_RETENTION ago: "
    "forgotten events would be accepted again.",
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
    help="Only events of this type, such as verification.data; repeat it for several. Default: the handlers'.",
)
@click.option("--dry-run", is_flag=True, help="Only count the missing events; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def backfill(*, since: datetime, until: datetime, types: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Accept events that happened on the platform and never arrived.

    The command compares the platform's lists of issuances and presentations with the store. It accepts the events that
    each status implies, in the order of the states, and marks them as backfilled. Workers handle them like any other
    event. A late delivery of such an event is a duplicate.

    You may run it as often as you like, on several hosts at once, and again after an interruption: no event is accepted
    twice. Erased events count as never arrived.
    """
    settings = WorkerSettings()
    _check(since, until, timedelta(seconds=settings.retention))
    wanted = frozenset(types) or frozenset(load(settings.handlers).types)
    if not wanted:
        raise click.UsageError("the loaded handlers want no event type; name some with --type")
    result, stopped = BackfillResult(), ""
    with open_store():
        try:
            asyncio.run(_run(settings, Window(since, until), wanted, result, dry_run=dry_run))
        except KeyboardInterrupt:
            stopped = "stopped by Ctrl-C"
        except ApiError as error:
            stopped = str(error)
        except TooLate:
            stopped = "it took so long that the store may have forgotten events at --since"
        except StoreError as error:
            # The reply of the last step may have been lost after it was done.
            stopped = unanswered(error)
    _report(result, stopped, dry_run=dry_run, as_json=as_json)
    sys.exit(int(bool(stopped or result.untold)))


def _check(since: datetime, until: datetime, retention: timedelta) -> None:
    if since >= until:
        raise click.UsageError("--since should be earlier than --until; the default of --until is one hour ago")
    oldest = datetime.now(UTC) - retention + _DURATION
    if since < oldest:
        raise click.UsageError(
            f"--since should be {oldest:%Y-%m-%dT%H:%M} or later: the store forgets settled events after "
            f"CREDHOOK_RETENTION, {retention.total_seconds():.0f} s, and would accept them again"
        )


async def _run(
    settings: WorkerSettings, window: Window, wanted: frozenset[str], result: BackfillResult, *, dry_run: bool
) -> None:
    """Run the backfill within the fleet's rate limit, and call nothing while the circuit is open."""
    store = settings.open_store()
    breaker = CircuitBreaker.from_settings(store, settings)
    watching = asyncio.create_task(breaker.watch())
    try:
        with bar("listing and comparing") as progress:
            run = Backfill(store, result=result, advance=progress.update)
            async with AsyncApi.from_settings(settings, guard=breaker.calls) as api:
                await run.run(api, window, wanted, dry=dry_run)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await breaker.aclose()
        await store.redis.aclose()


def _report(result: BackfillResult, stopped: str, *, dry_run: bool, as_json: bool) -> None:
    """Print one line about the accepted events, and one about each problem."""
    missing = result.missing.total()
    verb = "missing" if dry_run else "accepted"
    if as_json:
        found = {"listed": result.listed, "happened": result.happened, verb: missing, "types": dict(result.missing)}
        click.echo(json.dumps({**found, "untold": dict(result.untold), "complete": not stopped}))
    else:
        by_type = ", ".join(f"{number} {kind.removeprefix('openid4vc.')}" for kind, number in result.missing.items())
        line = f"{verb} {missing} of {result.happened} events of {result.listed} issuances and presentations"
        click.echo(line + (f": {by_type}" if by_type else ""))
    if result.untold:
        left = ", ".join(f"{number} {why}" for why, number in result.untold.items())
        click.echo(f"left {result.untold.total()} issuances and presentations: {left}", err=True)
    if stopped:
        click.echo(f"Error: {stopped}; accepted events stay, run the command again for the rest", err=True)
