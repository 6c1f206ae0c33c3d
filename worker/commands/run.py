"""`credhook events run`: run the handlers of one event here, in the foreground."""

import asyncio
import contextlib
import os
import platform
import sys
from datetime import datetime
from typing import Any, Final

import click

from credhook.settings import WorkerSettings
from credhook.store import State
from credhook.store.history import records
from credhook.worker.attempt import running
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.attempt.rehearsal import first_claim
from credhook.worker.commands.events import print_table
from credhook.worker.commands.options import AN_ID, no_event, open_store
from credhook.worker.handlers.loading import load
from credhook.worker.handlers.registry import Registry
from credhook.worker.queue.claims import Claim, Settlement
from credhook.worker.wiring import build_worker

#: Why an event cannot be claimed, see claim_event.lua → what to do.
_OBSTACLES: Final = {
    "held": "a worker has it; wait, or leave out --take",
    "early": "it waits for its next attempt; `credhook events replay ID --now` makes it due",
    "settled": "it has ended; `credhook events replay ID` puts it back, or leave out --take",
    "blocked": "a worker has another event of its resource; wait, or leave out --take",
}


@click.command("run")
@click.argument("webhook_id", type=AN_ID)
@click.option("--handler", "names", multiple=True, metavar="NAME", help="Only this handler; repeat it for several.")
@click.option("--take", is_flag=True, help="Take the event from the workers, and store the result as a worker would.")
@click.option("--debug", is_flag=True, help="Set no time limits, for breakpoint() in a handler.")
def run(*, webhook_id: str, names: tuple[str, ...], take: bool, debug: bool) -> None:
    """Run the handlers of one event once, here and in the foreground, with the details as they are now.

    The handlers really run: what they do to other systems is done. But the store is not changed: workers
    go on as if nothing had run, unless --take is set. Without it, handlers also run that have ended for the event.
    """
    if take and (debug or names):
        raise click.UsageError("--take runs the handlers that are due, in time: leave out --debug and --handler")
    settings = WorkerSettings()
    registry = load(settings.handlers, settings.handler_options)
    if unknown := set(names).difference(handler.name for handler in registry.handlers):
        raise click.UsageError(f"{min(unknown)} is not loaded; `credhook handlers list` shows all handlers")
    with open_store() as store:
        record = next(records(store, [webhook_id]), None)
    if record is None:
        raise no_event(store, webhook_id)
    wanting = {handler.name for handler in registry.matching(record["type"])}
    if not wanting:
        raise click.ClickException(f"no handler that is loaded here wants {record['type']}")
    if others := set(names).difference(wanting):
        raise click.ClickException(f"{min(others)} does not want {record['type']}; {', '.join(sorted(wanting))} would")
    if debug:
        running.untimed.set()
    claim = None if take else _claim_of(record, names)
    # Without a runner, which would wait for handlers that swallow their cancellation.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        attempt, settlement = loop.run_until_complete(_run(settings, registry, webhook_id, claim))
    rows = [(name, *_ending(attempt, name)) for name in (handler.name for handler in attempt.wanted)]
    print_table(("handler", "outcome", "ms", "error"), rows, "no handler ran")
    error = f": {settlement.error}" if settlement.error else ""
    click.echo(f"{webhook_id} {'is' if take else 'would be'} {settlement.state}{error}")
    sys.exit(0 if settlement.state is State.DONE else 1)


def _claim_of(record: dict[str, Any], names: tuple[str, ...]) -> Claim:
    """Return a claim that no store knows, for all handlers of the event or for these."""
    received = datetime.fromisoformat(record["received_at"])
    now = int(datetime.now(received.tzinfo).timestamp() * 1_000)
    claim = first_claim(record["webhook_id"], record["type"], record["resource_id"], received, now)
    return claim._replace(only=frozenset(names))


async def _run(
    settings: WorkerSettings, registry: Registry, webhook_id: str, claim: Claim | None
) -> tuple[Attempt, Settlement]:
    """Make one attempt. `claim`: of a rehearsal, or None to claim the event in the store."""
    name = f"events-run.{platform.node()}.{os.getpid()}"
    async with build_worker(settings, registry, worker=name, rehearse=claim is not None) as parts:
        await parts.lifespan.start()
        if claim is None:
            taken = await parts.processor.claims.claim(webhook_id)
            if isinstance(taken, str):
                raise click.ClickException(f"{webhook_id} cannot be taken: {_OBSTACLES.get(taken, taken)}")
            claim = taken
        attempt = Attempt(claim)
        settlement, _ = await parts.processor.handle(attempt)
    if settlement is None:
        raise click.ClickException(f"{webhook_id} was lost to another worker; its result is not stored")
    return attempt, settlement


def _ending(attempt: Attempt, name: str) -> tuple[str, str, str]:
    """Return how a handler ended, its milliseconds, and its error."""
    milliseconds = f"{attempt.durations[name]:.0f}" if name in attempt.durations else ""
    if wait := attempt.waits.get(name):
        return f"again in {wait.seconds:.0f} s", milliseconds, wait.error.removeprefix(f"{name}: ")
    outcome, _, reason = attempt.statuses.get(name, attempt.claim.ended.get(name, "did not run")).partition(": ")
    return outcome, milliseconds, reason
