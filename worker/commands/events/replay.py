"""`credhook events replay`: put settled and quarantined events back into the queue."""

import getpass
import os
import socket
from collections.abc import Sequence
from typing import Final

import click

from credhook.settings import StoreSettings
from credhook.store import State
from credhook.store.store import Store
from credhook.worker.commands.batches import interruptible, report, work_through
from credhook.worker.commands.events.command import confirmed, print_counts, refuse_everything, selecting
from credhook.worker.commands.search import EventSummary, Selection, count, open_store
from credhook.worker.queue.replay import How, Replay, Settled
from credhook.worker.settings import HandlerSettings

#: The script's outcome → words for an event that was replayed.
DONE: Final = {"replayed": ""}
#: The script's outcome → words for an event that was left.
LEFT: Final = {
    "open": "open",
    "unknown_type": "of unknown type",
    "no_resource": "without a resource",
    "unrelated": "that the handler does not want",
    "elsewhere": "of another queue",
    "changed": "changed meanwhile",
    "missing": "not in the store",
    "unreadable": "whose record cannot be read",
}


@click.command()
@selecting
@click.option("--all", "everything", is_flag=True, help="Every event, if no other option selects some.")
@click.option(
    "--handler",
    metavar="NAME",
    help="Run this handler for events of the types that it wants. For a done event it runs alone, even if it is new. "
    "For any other event, the handlers that have not ended run as well. `credhook handlers list` prints the names.",
)
@click.option("--by", metavar="NAME", help="Who replays, for the event's history; by default user@host.")
@click.option("--now", "hurry", is_flag=True, help="Also make waiting events due at once, as --cause always does.")
@click.option("--dry-run", is_flag=True, help="Only count the selected events, by state and type.")
@click.option("--yes", is_flag=True, help="Do not ask before all handlers of a done event run again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def replay(
    *,
    selection: Selection,
    everything: bool,
    handler: str | None,
    by: str | None,
    hurry: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Put settled and quarantined events back into the queue that CREDHOOK_QUEUE names.

    Attempts are counted from 1 again. Which handlers run depends on the state of the event:

    \b
    - dead: the handlers that gave up
    - done: all handlers, or only the handler of --handler
    - quarantined: all handlers, if this version knows the type
    - unhandled: replayed without this command, once a worker has a handler
    - unreadable: all handlers, once you have repaired the record
    - open: not changed, but due at once with --cause or --now
    """  # noqa: D301  Click wants the character itself.
    refuse_everything(selection, everything=everything)
    if handler is not None and hurry:
        raise click.UsageError("--handler and --now exclude each other: a waiting event runs what has not ended yet")
    with open_store() as (redis, index):
        with interruptible():
            wanted = _types_wanted(handler) if handler is not None else frozenset[str]()
            if dry_run:
                print_counts(count(redis, index, selection, retention=StoreSettings().retention), as_json=as_json)
                return

            def question(events: Sequence[EventSummary]) -> str:
                again = sum(event.state == State.DONE for event in events)
                if not again or handler is not None or yes:
                    return ""
                return f"Done already: {again} of the {len(events)} selected; all their handlers would run again."

            events = confirmed(redis, index, selection, question)
        how = How.NOW if hurry else how_to_replay(selection, handler)
        put_back = Replay(Store(redis, index.queue, retention=0), by=_user() if by is None else by)

        def step(batch: Sequence[EventSummary]) -> Sequence[bytes]:
            settled = [Settled(event.webhook_id, event.state) for event in batch]
            return put_back(settled, how=how, handler=handler or "", types=wanted)

        report(work_through(events, step, "replaying"), "replayed", DONE, LEFT, as_json=as_json)


def how_to_replay(selection: Selection, handler: str | None = None) -> How:
    """Return how to replay the selection. After a cause is fixed, its waiting events are due at once. Pure."""
    return How.NOW if selection.cause and handler is None else How.ANEW


def _user() -> str:
    """Return `user@host` of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _types_wanted(handler: str) -> frozenset[str]:
    """Return the types that the handler wants; none if it is not loaded here."""
    from credhook.worker.handlers.loading import load  # It takes longer than counting a selection.

    loaded = {one.name: one.types for one in load(HandlerSettings().handlers).handlers}
    if handler not in loaded:
        known = f"loaded are {', '.join(sorted(loaded))}" if loaded else "no handlers are loaded"
        click.echo(f"{handler} is not loaded here, so only events that it has handled are replayed; {known}", err=True)
    return loaded.get(handler, frozenset())
