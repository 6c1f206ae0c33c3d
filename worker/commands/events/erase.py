"""`credhook events erase`: forgets an event, and all that was kept for its sake."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace as but
from typing import Final, cast

import click
from redis import Redis
from redis.exceptions import ResponseError

from credhook.settings import LedgerSettings
from credhook.store import Keys, State, lua
from credhook.store.job import job_id
from credhook.worker.commands.events.command import by_handler, confirmed, print_counts, refuse_everything, selecting
from credhook.worker.commands.history.records import raw
from credhook.worker.commands.search.batches import batched, interruptible, report, work_through
from credhook.worker.commands.search.search import PAGE, count, ledger
from credhook.worker.commands.search.selection import EventSummary, Selection

_ERASE: Final = lua.load("erase.lua")

#: Outcome of the script → what to say of it besides that the event was erased.
DONE: Final = {"erased": "", "held": "while a worker had it"}
#: Outcome of the script → why the event was left.
LEFT: Final = {"changed": "changed meanwhile", "missing": "not in the ledger"}


@click.command()
@selecting
@by_handler
@click.option("--all", "everything", is_flag=True, help="Every event, where nothing else says which.")
@click.option("--dry-run", is_flag=True, help="Only count the selected events, by state and type.")
@click.option("--yes", is_flag=True, help="Do not ask first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def erase(
    *, selection: Selection, handler: str | None, everything: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Forget events, and all that is kept for their sake.

    With --resource it answers a request to erase what is known of one issuance or presentation; what handlers have
    stored elsewhere is theirs to erase. A delivery that the platform repeats after its event was erased is not known
    as a duplicate any more: it is accepted as new, and its handlers run again. An event that a worker has in hand is
    erased as well; a handler that is running for it may still finish.
    """
    selection = but(selection, handler=handler)
    refuse_everything(selection, everything=everything)
    with ledger() as (redis, index):
        with interruptible():
            if dry_run:
                print_counts(count(redis, index, selection, retention=LedgerSettings().retention), as_json=as_json)
                return
            events = confirmed(
                redis,
                index,
                selection,
                lambda found: (
                    f"Selected to be erased: {len(found)}; a repeated delivery would be accepted as new."
                    if found and not yes
                    else ""
                ),
            )
        erasure = Erasure(redis, index, selection)
        erasure.begin()
        result = work_through(events, erasure, "erasing")
        if not (result.interrupted or result.error):
            erasure.finish(events)
        report(result, "erased", DONE, LEFT, as_json=as_json)


class Erasure:
    """Erases what was selected, up to a few hundred events at once: Redis does nothing else meanwhile.

    Each step raises RedisError where Redis fails.
    """

    def __init__(self, redis: Redis, index: Keys, selection: Selection) -> None:
        """Prepare to erase what was found by the selection."""
        self._redis = redis
        self._selection = selection
        self._script = redis.register_script(_ERASE)
        settled = (index.dead, *index.all_unhandled, index.quarantined, index.unreadable)
        of_events = (index.open, index.opened, *settled, index.backfilled)
        of_jobs = (index.scheduled, index.failed, index.isolated)
        self._of_events = len(of_events)
        self._index = index
        self._keys = [index.prefix, *of_events, *of_jobs]

    def begin(self) -> None:
        """Forget what names the resource outside its events, if one was asked for."""
        if self._selection.resource is not None:
            _forget_resource(self._redis, self._index, self._selection.resource)

    def __call__(self, batch: Sequence[EventSummary]) -> Sequence[bytes]:
        """Erase these; what became of each.

        Raises:
            RedisError: Redis failed; some may have been erased.
        """
        arguments: list[str | int | bytes] = [self._of_events]
        for event in batch:
            # Asked for by its state, it is spared if it has left that state; else it goes, whatever becomes of it.
            state = event.state if self._selection.states else ""
            arguments += raw(event.webhook_id), job_id(self._index.queue, event.webhook_id), state
        return cast(Sequence[bytes], self._script(keys=self._keys, args=arguments))

    def finish(self, events: Sequence[EventSummary]) -> None:
        """Take those of the erased events from the lists whose records do not say where they were listed."""
        strays = [raw(event.webhook_id) for event in events if event.state in {State.UNREADABLE, ""}]
        if strays:
            _unlist(self._redis, self._index, strays)
            _unlock(self._redis, self._index.locks, frozenset(strays))


def _unlist(redis: Redis, index: Keys, strays: Sequence[bytes]) -> None:
    """Take events from wherever the index lists them."""
    pipeline = redis.pipeline(transaction=False)
    for key in index.event_indexes():
        pipeline.zrem(key, *strays)
    pipeline.execute()


def _unlock(redis: Redis, locks: str, strays: Collection[bytes]) -> None:
    """Free the locks that such events have had; this looks at all that there are, a page at a time."""
    with suppress(ResponseError):  # They are of another type: none of ours.
        for resource, lock in redis.hscan_iter(locks, count=PAGE):
            if lock.partition(b" ")[0] in strays:
                redis.hdel(locks, resource)


def _forget_resource(redis: Redis, index: Keys, resource: str) -> None:
    """Forget what names the resource outside its events: what handlers have seen of it, and deliveries kept aside."""
    redis.delete(index.resource + resource)
    for page in batched(redis.scan_iter(match=index.conflict + "*", count=PAGE), PAGE):
        pipeline = redis.pipeline(transaction=False)
        for key in page:
            pipeline.hkeys(key)
        for key, fields in zip(page, pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(fields, Exception):  # It is no hash: somebody else has written it.
                continue
            if theirs := [field for field in fields if field.endswith(f" {resource}".encode())]:
                redis.hdel(key, *theirs)
