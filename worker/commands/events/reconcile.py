"""`credhook events reconcile`: what the platform says has happened, and no delivery has brought, is accepted."""

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Final

import click
from redis.exceptions import RedisError

from credhook.store.connection import open_redis
from credhook.worker.api.calls.errors import ApiError
from credhook.worker.backfill.comparing import Comparison
from credhook.worker.backfill.platform import platform
from credhook.worker.backfill.run import Reconciliation, Result, TooLate
from credhook.worker.backfill.states import Window
from credhook.worker.commands.events.options import MOMENT, TYPE
from credhook.worker.commands.search.batches import INTERRUPTED, bar
from credhook.worker.commands.search.reading import ledger
from credhook.worker.handlers.loading import load
from credhook.worker.settings import WorkerSettings

#: How much later than its event a record may be looked for: so long a reconciliation may take.
_TAKES: Final = timedelta(hours=1)
#: Why nothing can be said of a resource → in words that follow a number.
_UNTOLD: Final = {
    "undated": "without the time of their last change",
    "unknown_status": "of a status that is not known",
    "unreadable_id": "of an id that is none",
}


@click.command()
@click.option(
    "--since",
    metavar="TIME",
    type=MOMENT,
    required=True,
    help="Only what happened since then: ISO 8601, or an age: 2h, 6d. Less than CREDHOOK_RETENTION ago: what the "
    "ledger has forgotten would be accepted again.",
)
@click.option(
    "--until",
    metavar="TIME",
    type=MOMENT,
    default="1h",
    show_default=True,
    help="Only what happened before; likewise. What is younger may still be on its way.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    type=TYPE,
    help="Only events of this type, such as verification.data; repeat it for several. Default: the handlers'.",
)
@click.option("--dry-run", is_flag=True, help="Only count what has not arrived; nothing is written.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def reconcile(*, since: datetime, until: datetime, types: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Accept what has happened on the platform and never arrived.

    The platform's lists of issuances and presentations are compared with the ledger. What each must have gone through,
    by its status, is accepted in the order of its states, marked as reconciled, and worked on like any other event. A
    late delivery of it is then a duplicate. It may be run as often as you like, on several hosts at once, and again
    after it was broken off: nothing is accepted twice. What was erased counts as never arrived.
    """
    settings = WorkerSettings()
    _check(since, until, timedelta(seconds=settings.retention))
    wanted = frozenset(types) or frozenset(load(settings.handlers).types)
    if not wanted:
        raise click.UsageError("the loaded handlers want no event type; name some with --type")
    result = Result()
    stopped = ""
    with ledger():
        try:
            asyncio.run(_run(settings, Window(since, until), wanted, result, dry_run=dry_run))
        except KeyboardInterrupt:
            stopped = "stopped by Ctrl-C"
        except ApiError as error:
            stopped = str(error)
        except TooLate:
            stopped = "it took so long that the ledger may have forgotten what happened at --since"
        except RedisError as error:
            # The reply of the last step may have been lost after it was done.
            stopped = f"Redis does not answer any more ({type(error).__name__})"
    _report(result, stopped, dry_run=dry_run, as_json=as_json)
    if stopped == "stopped by Ctrl-C":
        sys.exit(INTERRUPTED)
    if stopped or result.untold:
        sys.exit(1)


def _check(since: datetime, until: datetime, retention: timedelta) -> None:
    if since >= until:
        raise click.UsageError("--since should be earlier than --until, which is an hour ago unless you say otherwise")
    oldest = datetime.now(UTC) - retention + _TAKES
    if since < oldest:
        raise click.UsageError(
            f"--since should be {oldest:%Y-%m-%dT%H:%M} or later: the ledger forgets what is settled after "
            f"CREDHOOK_RETENTION, {retention.total_seconds():.0f} s, and what it has forgotten would be accepted again"
        )


async def _run(
    settings: WorkerSettings, window: Window, wanted: frozenset[str], result: Result, *, dry_run: bool
) -> None:
    redis = open_redis(settings.redis_url.get_secret_value())
    try:
        with bar("listing and comparing") as advance:
            async with platform(settings, redis, share_token=not dry_run) as api:
                await Reconciliation(
                    api,
                    Comparison(redis, queue=settings.queue, retention=settings.retention),
                    window=window,
                    wanted=wanted,
                    retention=settings.retention,
                    advance=advance,
                    result=result,
                ).run(dry=dry_run)
    finally:
        await redis.aclose()


def _report(result: Result, stopped: str, *, dry_run: bool, as_json: bool) -> None:
    """Say what was found and done, on one line; on another what is in the way of the rest."""
    missing = result.missing.total()
    verb = "missing" if dry_run else "accepted"
    if as_json:
        found = {"listed": result.listed, "happened": result.happened, verb: missing, "types": dict(result.missing)}
        click.echo(json.dumps({**found, "untold": dict(result.untold), "complete": not stopped}))
    else:
        by_type = ", ".join(f"{number} {kind.removeprefix('openid4vc.')}" for kind, number in result.missing.items())
        line = f"{verb} {missing} of {result.happened} events of {result.listed} issuances and presentations"
        click.echo(line + (f": {by_type}" if by_type else ""))
    left = ", ".join(f"{number} {_UNTOLD[why]}" for why, number in result.untold.items())
    if left:
        click.echo(f"left {result.untold.total()} issuances and presentations: {left}", err=True)
    if stopped:
        click.echo(f"Error: {stopped}; what was accepted stays, run the command again for the rest", err=True)
