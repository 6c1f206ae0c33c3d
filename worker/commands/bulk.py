"""`credhook events replay` and `credhook events erase`: commands that change many events."""

import getpass
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from typing import Any, Final

import click

from credhook.settings import HandlerSettings
from credhook.store import State
from credhook.store.bulk import BulkResult, sentence, work_through
from credhook.store.erase import ERASED, NOT_ERASED, Erasure, lift
from credhook.store.replay import NOT_REPLAYED, REPLAYED, How, Replay, Settled
from credhook.store.selection import EventSummary, Selection, absent, read_page
from credhook.terminal import plain
from credhook.worker.commands import options

#: Options of commands that change many events.
_BULK: Final = (
    *options.OPTIONS,
    options.ALL,
    click.option("--dry-run", is_flag=True, help="Only count the selected events, by state and type."),
    click.option(
        "--expect", type=click.IntRange(0), metavar="N", help="Change nothing unless --dry-run counts N events now."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end."),
)


@click.command()
@options.selecting(*_BULK)
@click.option(
    "--handler",
    "only_handler",
    metavar="NAME",
    help="Run this handler for events of the types that it wants. For a done event it runs alone, even if it is new. "
    "For any other event, the handlers that have not ended run as well. `credhook handlers list` prints the names.",
)
@click.option("--by", metavar="NAME", help="Who replays, for the event's history. Default: user@host.")
@click.option("--now", "due_now", is_flag=True, help="Also make waiting events due at once, as --cause alone does.")
@click.option(
    "--renamed",
    is_flag=True,
    help="Do not wait for a handler that was renamed or removed. Run the handlers that workers have now.",
)
@click.option("--yes", is_flag=True, help="Do not ask before all handlers of a done event run again.")
def replay(
    *,
    selection: Selection,
    dry_run: bool,
    expect: int | None,
    as_json: bool,
    only_handler: str | None,
    by: str | None,
    due_now: bool,
    renamed: bool,
    yes: bool,
) -> None:
    """Put settled and quarantined events back into the queue that CREDHOOK_QUEUE names.

    WEBHOOK_ID and options select the events.
    Attempts are counted from 1 again. Which handlers run depends on the state of the event:

    \b
    - dead: the handlers that gave up
    - done: all handlers, or only the handler of --handler
    - quarantined: all handlers, if this version knows the type
    - unhandled: replayed without this command, once a worker has the handler; or with --renamed
    - unreadable: all handlers, once you have repaired the record
    - open: not changed, but due at once with --cause or --now
    """  # noqa: D301  Click needs the backspace character.
    if (only_handler is not None) + due_now + renamed > 1:
        raise click.UsageError("--handler, --now and --renamed exclude each other")
    with options.open_store() as store:
        wanted = frozenset[str]() if only_handler is None else _types_wanted(only_handler)
        events = read_page(store, selection).events[::-1]
        counted = events
        if wanted:
            counted = [event for event in events if event.type in wanted]
        elif only_handler is not None:
            counted = read_page(store, replace(selection, handler=only_handler)).events
        _count(counted, dry_run=dry_run, expect=expect, as_json=as_json)
        again = sum(event.state == State.DONE for event in events)
        if again and only_handler is None and not yes:
            ask(f"Done already: {again} of the {len(events)} selected; all their handlers would run again.")
        events += absent(store, selection)
        mode: How = ""
        if renamed:
            mode = "renamed"
        elif due_now or (selection.cause and only_handler is None):  # After a cause is fixed, waiting events are due.
            mode = "now"
        put_back = Replay(store, by=_user() if by is None else by)

        def step(batch: Sequence[EventSummary]) -> Sequence[bytes]:
            settled = [Settled(event.webhook_id, event.state) for event in batch]
            return put_back(settled, how=mode, handler=only_handler or "", types=wanted)

        with bar("replaying", len(events)) as progress:
            result = work_through(events, step, progress.update)
        report(result, "replayed", REPLAYED, NOT_REPLAYED, queue=store.queue, as_json=as_json)


def _count(events: Sequence[EventSummary], *, dry_run: bool, expect: int | None, as_json: bool) -> None:
    """Print the numbers and exit for a dry run. Otherwise fail if another number of events was expected."""
    if dry_run:
        for (state, kind), number in sorted(Counter((event.state, event.type) for event in events).items()):
            row = {"state": state, "type": kind, "events": number}
            click.echo(json.dumps(row) if as_json else plain(f"{number:>8}  {state:<11}  {kind}"))
        if not as_json:
            click.echo(f"{len(events):>8}  in all")
        sys.exit()
    if expect not in {None, len(events)}:
        raise click.ClickException(f"selected events now: {len(events)}, not {expect}; nothing was changed")


def _user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _types_wanted(handler: str) -> frozenset[str]:
    """Return the types that the handler wants; none if it is not loaded here."""
    from credhook.worker.handlers.loading import load  # Its import takes longer than a selection.

    loaded = {entry.name: entry.types for entry in load(HandlerSettings().handlers).handlers}
    if handler not in loaded:
        loaded_names = f"loaded are {', '.join(sorted(loaded))}" if loaded else "no handlers are loaded"
        click.echo(
            f"{handler} is not loaded here, so only events that it has handled are replayed; {loaded_names}", err=True
        )
    return loaded.get(handler, frozenset())


@click.command()
@options.selecting(*_BULK, options.BY_HANDLER)
@click.option("--by", metavar="NAME", help="Who erases, for the record of erasures. Default: user@host.")
@click.option(
    "--lift", "is_lifted", is_flag=True, help="Erase nothing. Accept events of the erased resource of --resource again."
)
@click.option("--yes", is_flag=True, help="Do not ask first.")
def erase(
    *,
    selection: Selection,
    dry_run: bool,
    expect: int | None,
    as_json: bool,
    by: str | None,
    is_lifted: bool,
    yes: bool,
) -> None:
    """Erase events and all data that the store keeps for them. WEBHOOK_ID and options select the events.

    Use --resource to erase the data of one issuance or presentation. Handlers must erase the data that they have
    stored elsewhere. An event that a worker holds is erased as well; a handler that is running for it may still finish.

    For CREDHOOK_RETENTION, no late delivery and no backfill brings an erased event back. With --resource, they bring no
    event of that resource. `credhook events erasures` shows who erased how many events.
    """
    if is_lifted and selection != Selection(resource=selection.resource):
        raise click.UsageError("--lift takes --resource alone")
    with options.open_store() as store:
        if is_lifted:
            if not lift(store, selection.resource or ""):
                raise click.ClickException("nothing of this resource was erased within CREDHOOK_RETENTION")
            click.echo("lifted")
            return
        events = read_page(store, selection).events[::-1]
        _count(events, dry_run=dry_run, expect=expect, as_json=as_json)
        if events and not yes:
            ask(f"Selected to be erased: {len(events)}; no delivery and no backfill will bring them back.")
        events += absent(store, selection)
        erasure = Erasure(store, selection, by=_user() if by is None else by)
        with bar("erasing", len(events)) as progress:
            result = work_through(events, erasure, progress.update)
        if not result.stopped:
            result.outcomes.update(outcome.decode() for outcome in erasure.finish(events))
        report(result, "erased", ERASED, NOT_ERASED, queue=store.queue, as_json=as_json)


def bar(label: str, total: int | None = None) -> AbstractContextManager[Any]:
    """Return a progress bar, hidden unless standard error is a terminal. Its `update` advances it by a number."""
    steps = count() if total is None else None  # click needs the length, or else an iterable.
    hidden = not sys.stderr.isatty()
    return click.progressbar(steps, length=total, label=label, show_pos=True, file=sys.stderr, hidden=hidden)


def report(
    result: BulkResult,
    verb: str,
    done: Mapping[str, str],
    not_done: Mapping[str, str],
    *,
    queue: str,
    as_json: bool,
) -> None:
    """Print how many events were done and not done, with the verb in the past tense. Exit with 1 if none were done.

    `done` and `not_done` map outcomes to words that follow their number, or "".
    """
    finished = sum(result.outcomes[name] for name in done)
    remaining = {name: result.outcomes[name] for name in not_done if result.outcomes[name]}
    if as_json:
        click.echo(json.dumps({verb: finished, "left": remaining, "complete": not result.stopped}))
    elif not result.stopped:
        none = f"{verb} 0: the store of the queue {queue} has no such events"
        click.echo(sentence(result.outcomes, verb, done, not_done) if result.total or result.outcomes else none)
    if result.stopped:
        # The last batch may have been done, and its reply lost.
        raise click.ClickException(
            f"{verb} at least {finished} of {result.total}; run the command again for the others. {result.stopped}"
        )
    if remaining and not finished:
        sys.exit(1)


def ask(consequence: str) -> None:
    """Return if the operator agrees to the consequence. Otherwise exit."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{consequence} There is no terminal to ask at; add --yes to confirm")
    click.confirm(f"{consequence} Go on?", abort=True, err=True)
