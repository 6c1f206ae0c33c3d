"""`credhook events erase`: removes events and all their data from the store."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace as but
from typing import Final, cast

import click
from redis import Redis
from redis.exceptions import ResponseError

from credhook.settings import StoreSettings
from credhook.store import Keys, State, lua
from credhook.store.job import job_id
from credhook.worker.commands.batches import batched, interruptible, report, work_through
from credhook.worker.commands.events.command import by_handler, confirmed, print_counts, refuse_everything, selecting
from credhook.worker.commands.history import raw
from credhook.worker.commands.search import PAGE, EventSummary, Selection, count, open_store

_ERASE: Final = lua.load("erase")

#: The script's outcome → words for an event that was erased.
DONE: Final = {"erased": "", "held": "while a worker had it"}
#: The script's outcome → words for an event that was left.
LEFT: Final = {"changed": "changed meanwhile", "missing": "not in the store"}


@click.command()
@selecting
@by_handler
@click.option("--all", "everything", is_flag=True, help="Every event, if no other option selects some.")
@click.option("--dry-run", is_flag=True, help="Only count the selected events, by state and type.")
@click.option("--yes", is_flag=True, help="Do not ask first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def erase(
    *, selection: Selection, handler: str | None, everything: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Erase events and all data that the store keeps for them.

    Use --resource to erase the data of one issuance or presentation. Handlers must erase the data that they have
    stored elsewhere. If the platform repeats a delivery after its event was erased, the delivery is accepted as new
    and its handlers run again. An event that a worker holds is erased as well; a handler that is running for it may
    still finish.
    """
    selection = but(selection, handler=handler)
    refuse_everything(selection, everything=everything)
    with open_store() as (redis, index):
        with interruptible():
            if dry_run:
                print_counts(count(redis, index, selection, retention=StoreSettings().retention), as_json=as_json)
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
    """Erases the selected events, a few hundred in one script. Each step raises RedisError if Redis fails."""

    def __init__(self, redis: Redis, index: Keys, selection: Selection) -> None:
        """Prepare to erase events that the selection has found."""
        self._redis = redis
        self._selection = selection
        self._script = redis.register_script(_ERASE)
        settled = (index.dead, *index.all_unhandled, index.quarantined, index.unreadable)
        of_events = (index.open, index.open_by_received, *settled, index.backfilled)
        of_jobs = (index.scheduled, index.failed, index.isolated)
        self._of_events = len(of_events)
        self._index = index
        self._keys = [index.prefix, *of_events, *of_jobs]

    def begin(self) -> None:
        """Erase the data of the selected resource that lies outside its events."""
        if self._selection.resource is not None:
            _forget_resource(self._redis, self._index, self._selection.resource)

    def __call__(self, batch: Sequence[EventSummary]) -> Sequence[bytes]:
        """Erase these events and return the outcome of each.

        Raises:
            RedisError: Redis failed; some events may have been erased.
        """
        arguments: list[str | int | bytes] = [self._of_events]
        for event in batch:
            # An event that was selected by its state is kept if it has left that state since.
            state = event.state if self._selection.states else ""
            arguments += raw(event.webhook_id), job_id(self._index.queue, event.webhook_id), state
        return cast(Sequence[bytes], self._script(keys=self._keys, args=arguments))

    def finish(self, events: Sequence[EventSummary]) -> None:
        """Remove erased events from all indexes if their records did not name the index."""
        strays = [raw(event.webhook_id) for event in events if event.state in {State.UNREADABLE, ""}]
        if strays:
            _unlist(self._redis, self._index, strays)
            _unlock(self._redis, self._index.locks, frozenset(strays))


def _unlist(redis: Redis, index: Keys, strays: Sequence[bytes]) -> None:
    """Remove events from every event index."""
    pipeline = redis.pipeline(transaction=False)
    for key in index.event_indexes():
        pipeline.zrem(key, *strays)
    pipeline.execute()


def _unlock(redis: Redis, locks: str, strays: Collection[bytes]) -> None:
    """Free the locks of these events. This reads all locks, a page at a time."""
    with suppress(ResponseError):  # Another program wrote this key: it is no hash.
        for resource, lock in redis.hscan_iter(locks, count=PAGE):
            if lock.partition(b" ")[0] in strays:
                redis.hdel(locks, resource)


def _forget_resource(redis: Redis, index: Keys, resource: str) -> None:
    """Erase what handlers have seen of the resource, and the conflicting deliveries that name it."""
    redis.delete(index.resource + resource)
    for page in batched(redis.scan_iter(match=index.conflict + "*", count=PAGE), PAGE):
        pipeline = redis.pipeline(transaction=False)
        for key in page:
            pipeline.hkeys(key)
        for key, fields in zip(page, pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(fields, Exception):  # Another program wrote this key: it is no hash.
                continue
            if theirs := [field for field in fields if field.endswith(f" {resource}".encode())]:
                redis.hdel(key, *theirs)
