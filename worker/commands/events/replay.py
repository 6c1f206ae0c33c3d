"""`credhook events replay`: settled and quarantined events back to the workers, as if they had just been accepted."""

import difflib
import getpass
import os
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Final

import click
from redis import Redis

from credhook.settings import LedgerSettings
from credhook.store import EVENT, HANDLER, State
from credhook.worker.commands.events.options import refuse_everything, selecting
from credhook.worker.commands.events.tables import print_counts
from credhook.worker.commands.history.records import raw
from credhook.worker.commands.search.batches import ask, batched, interruptible, report, work_through
from credhook.worker.commands.search.counting import count
from credhook.worker.commands.search.reading import PAGE, absent, find, ledger
from credhook.worker.commands.search.selection import EventSummary, Selection
from credhook.worker.queue.replay import How, Replay, Settled
from credhook.worker.settings import HandlerSettings

#: Outcome of the script → what to say of it besides that the event was replayed.
DONE: Final = {"replayed": ""}
#: Outcome of the script → why the event was left.
LEFT: Final = {
    "open": "open",
    "unknown_type": "of unknown type",
    "no_resource": "without a resource",
    "unrelated": "that the handler does not want",
    "elsewhere": "of another queue",
    "changed": "changed meanwhile",
    "missing": "not in the ledger",
    "unreadable": "whose record cannot be read",
}


@click.command()
@selecting
@click.option("--all", "everything", is_flag=True, help="Every event, where nothing else says which.")
@click.option(
    "--handler",
    metavar="NAME",
    help="Run this handler for events of the types that it wants. Of a done event it runs alone, whether it has run "
    "before or has only come since; of any other, those that have not ended yet run as well. `credhook handlers list` "
    "prints the names.",
)
@click.option("--by", metavar="NAME", help="Who wants it, for the event's story; by default user@host.")
@click.option("--now", "hurry", is_flag=True, help="Also make waiting events due at once; with --cause they are.")
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
    """Put settled and quarantined events back into the queue that CREDHOOK_QUEUE names, whichever they came by.

    What was set aside because its record could not be read is replayed once somebody has repaired it.

    Which handlers run again: of a dead event those that gave up, of a done event all, and with --handler that one. What
    is quarantined is accepted if its type is known by now. What is unhandled comes back by itself, once a worker has a
    handler for it. What is open already is left alone, but with --cause what waits is due at once. The attempts are
    counted from 1 again.
    """
    refuse_everything(selection, everything=everything)
    if handler is not None and hurry:
        raise click.UsageError("--handler and --now exclude each other: a waiting event runs what has not ended yet")
    with ledger() as (redis, index):
        with interruptible():
            if dry_run and handler is None:
                print_counts(count(redis, index, selection, retention=LedgerSettings().retention), as_json=as_json)
                return
            events = find(redis, index, selection)[::-1]
            wanted = _types_wanted(redis, handler, events) if handler is not None else frozenset[str]()
            if dry_run:
                print_counts(Counter((one.state, one.type) for one in events), as_json=as_json)
                return
            again = sum(event.state == State.DONE for event in events)
            if again and handler is None and not yes:
                ask(f"Done already: {again} of the {len(events)} selected; all their handlers would run again.")
            events += [EventSummary(webhook_id, "", "", 0) for webhook_id in absent(redis, selection)]
        how = How.NOW if hurry else how_to_replay(selection, handler)
        put_back = Replay(redis, queue=index.queue, by=_whoever() if by is None else by)

        def step(batch: Sequence[EventSummary]) -> Sequence[bytes]:
            settled = [Settled(event.webhook_id, event.state) for event in batch]
            return put_back(settled, how=how, handler=handler or "", types=wanted)

        report(work_through(events, step, "replaying"), "replayed", DONE, LEFT, as_json=as_json)


def how_to_replay(selection: Selection, handler: str | None = None) -> How:
    """How events begin again: who has mended a cause does not want to wait for hours until that is seen. Pure."""
    return How.NOW if selection.cause and handler is None else How.ANEW


def _whoever() -> str:
    """Who types this, where: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _types_wanted(redis: Redis, handler: str, events: Sequence[EventSummary]) -> frozenset[str]:
    """The types that the handler wants, if it is loaded here; none if only the records of the events know it.

    Raises:
        click.UsageError: neither knows it.
    """
    from credhook.worker.handlers.loading import load  # noqa: PLC0415  It takes longer than to count a selection.

    loaded = {one.name: one.types for one in load(HandlerSettings().handlers).handlers}
    if handler in loaded:
        return loaded[handler]
    recorded = set[str]()
    for page in batched(events, PAGE):
        pipeline = redis.pipeline(transaction=False)
        for event in page:
            pipeline.hkeys(raw(EVENT + event.webhook_id))
        replies = pipeline.execute(raise_on_error=False)  # A key may be no hash.
        fields = [field.decode(errors="replace") for names in replies if isinstance(names, list) for field in names]
        recorded.update(field.removeprefix(HANDLER) for field in fields if field.startswith(HANDLER))
        if handler in recorded:
            return frozenset()
    names = sorted(recorded | loaded.keys())
    near = difflib.get_close_matches(handler, names)
    known = f"did you mean {' or '.join(near)}?" if near else f"they know {', '.join(names) or 'none'}"
    raise click.UsageError(f"no selected event and no loaded plugin knows a handler {handler!r}; {known}")
