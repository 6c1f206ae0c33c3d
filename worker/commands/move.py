"""`credhook events move`: bring the events of another queue over, such as those of a misspelt CREDHOOK_QUEUE."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from credhook.store import Keys, State
from credhook.store.announcements import SILENT_SECONDS, announced
from credhook.store.job import job_id
from credhook.store.store import Store, SyncStore
from credhook.worker.commands.batches import BATCH, batched, interruptible, report, work_through
from credhook.worker.commands.search import EventSummary, Selection, open_store, read_page
from credhook.worker.queue.leases import put_back

#: The outcome → words for an event that was moved, or was left.
_MOVED: Final = {"moved": "", "duplicate": "that are in this queue as well"}
_NOT_MOVED: Final = {
    "conflict": "whose id has another type or resource here",
    "held": "that a worker has",
    "sealed": "with presented data that is sealed for that queue",
    "unreadable": "whose record cannot be read",
    "missing": "gone meanwhile",
}
_REQUIRED: Final = {b"state", b"type", b"resource", b"received"}


@click.command()
@click.option("--from", "source", metavar="QUEUE", required=True, help="The queue that has the events.")
@click.option("--beside-workers", is_flag=True, help="Move them although workers take from that queue.")
@click.option("--dry-run", is_flag=True, help="Only count the events, by state.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def move(*, source: str, beside_workers: bool, dry_run: bool, as_json: bool) -> None:
    """Move all events of another queue of this Redis into the queue that CREDHOOK_QUEUE names.

    They keep their ids, so repeated deliveries are duplicates here, and the handlers that have ended do not run again.
    An event that is in both queues stays as it is here. If the command is broken off, repeat it. Stop the receivers of
    the other queue first, or start them with the right CREDHOOK_QUEUE.
    """
    with open_store() as store:
        other = Store(store.redis, source, retention=store.retention)
        with interruptible():
            if source == store.queue:
                raise click.UsageError(
                    f"CREDHOOK_QUEUE is {source} itself: set it to the queue that should get the events"
                )
            other.check_schema(write=False)
            if not beside_workers and (workers := _live_workers(other)):
                remedy = "stop them, or say --beside-workers; some events may then run twice"
                raise click.UsageError(f"{workers} workers take from {source}: {remedy}")
            events = read_page(other, Selection()).events[::-1]
            if dry_run:
                counts = Counter(event.state for event in events)
                report_line = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
                click.echo(
                    json.dumps(counts) if as_json else f"{len(events)} events: {report_line}" if events else "no events"
                )
                return
        result = work_through(events, Move(other, store), "moving")
        if not (result.interrupted or result.error):
            _tidy(other)
        report(result, "moved", _MOVED, _NOT_MOVED, as_json=as_json)


def _live_workers(store: SyncStore) -> int:
    silent = store.clock() - SILENT_SECONDS * 1_000
    known: Any = store.redis.hgetall(store.keys.handlers)
    return sum(one.renewed > silent for one in announced(known))


def _tidy(source: SyncStore) -> None:
    """Remove what a broken-off move has left: entries of open events whose record has gone, and their jobs."""
    keys, redis = source.keys, source.redis
    for batch in batched((one for one, _ in redis.zscan_iter(keys.open, count=BATCH)), BATCH):
        asking = redis.pipeline(transaction=False)
        for one in batch:
            asking.exists(keys.event.encode() + one)
        if strays := [one for one, found in zip(batch, asking.execute(), strict=True) if not found]:
            redis.zrem(keys.open, *strays)
    if not redis.exists(keys.open):
        redis.delete(keys.jobs, keys.urgent, keys.isolated)
        redis.srem("rq:queues", keys.jobs)


class Move:
    """Moves events of one queue to another, the oldest first. Each step raises RedisError if Redis fails."""

    def __init__(self, source: SyncStore, target: SyncStore) -> None:
        self._source, self._target = source, target
        #: Seconds that a list of backfilled events outlives the last of them, as in accept.lua.
        self._lasts = 2 * target.retention

    def __call__(self, batch: Sequence[EventSummary]) -> list[bytes]:
        """Move these events in one transaction, then queue those that are open. Return the outcome of each.

        The record changes its name after all that lists it in the target is written, and before the source forgets it.
        So each event is in one queue at least. If the transaction is cut there, the event is in both lists and has one
        record. The sweeper queues open events that a broken command has not queued.
        """
        ids = [event.webhook_id for event in batch]
        here, there = self._source.keys, self._target.keys
        asking = self._source.redis.pipeline(transaction=False)
        for one in ids:
            asking.hgetall(here.event + one)
            asking.hmget(there.event + one, "type", "resource")
            asking.zscore(here.leases, one)
            asking.exists(here.snapshot + one)
        now, replies = self._source.clock(), asking.execute(raise_on_error=False)
        records: list[Any] = replies[::4]
        facts = zip(records, *(replies[place::4] for place in (1, 2, 3)), strict=True)
        outcomes = [_outcome(*each, now=now) for each in facts]
        moving = self._source.redis.pipeline()
        opened = []
        for one, outcome, record in zip(ids, outcomes, records, strict=True):
            if outcome in {b"moved", b"duplicate"}:
                fields = {name.decode(): value.decode(errors="surrogateescape") for name, value in record.items()}
                if outcome == b"moved":
                    _write(moving, here, there, one, fields)
                    if "backfilled" in fields:
                        moving.zadd(there.backfilled, {one: now})
                        moving.expire(there.backfilled, self._lasts)
                _forget(moving, here, one, fields)
                if outcome == b"moved" and fields["state"] in {State.ACCEPTED, State.WAITING}:
                    opened.append(one)
        moving.execute()
        for one in opened:
            put_back(self._target, one, in_transit=0)
        return outcomes


def _outcome(record: Any, twin: Any, lease: Any, sealed: Any, *, now: int) -> bytes:
    if isinstance(record, Exception) or isinstance(twin, Exception) or (record and not record.keys() >= _REQUIRED):
        return b"unreadable"
    if not record:
        return b"missing"
    if lease is not None and lease > now:
        return b"held"
    if twin[0] is not None or twin[1] is not None:
        return b"duplicate" if twin == [record[b"type"], record[b"resource"]] else b"conflict"
    return b"sealed" if sealed else b"moved"


def _write(moving: Any, here: Keys, there: Keys, one: str, record: Mapping[str, str]) -> None:
    """List the event in the target, and then rename its record. A record that came meanwhile stays as it is."""
    received, settled, state, kind = record["received"], record.get("settled"), record["state"], record["type"]
    lists = {
        State.ACCEPTED: (there.open, there.open_by_received),
        State.WAITING: (there.open, there.open_by_received),
        State.DEAD: (there.dead,),
        State.DATA_GONE: (there.dead,),
        State.UNHANDLED: (there.unhandled + kind,),
        State.QUARANTINED: (there.quarantined,),
        State.UNREADABLE: (there.unreadable,),
    }
    for key in lists.get(State(state), ()):
        moving.zadd(key, {one: settled or received})
    index_type = "" if state == State.QUARANTINED else kind
    moving.zadd(there.event_index(index_type, record["resource"]), {one: received})
    for before, after in ((here.history, there.history), (here.conflict, there.conflict)):
        moving.copy(before + one, after + one)
    # The latest state that handlers have seen. If the target has one, it keeps that.
    moving.copy(here.resource + record["resource"], there.resource + record["resource"])
    moving.hdel(here.event + one, "holder")
    moving.renamenx(here.event + one, there.event + one)


def _forget(moving: Any, here: Keys, one: str, record: Mapping[str, str]) -> None:
    """Remove all that the source keeps of the event."""
    job, kind, resource = job_id(here.queue, one), record["type"], record["resource"]
    for key in (here.open_by_received, here.leases, here.dead, here.quarantined, here.unreadable, here.backfilled):
        moving.zrem(key, one)
    moving.zrem(here.unhandled + kind, one)
    for key in (here.event_index(kind, resource), here.event_index("", resource)):
        moving.zrem(key, one)
    moving.zrem(here.scheduled, job)
    moving.delete(here.event + one, here.history + one, here.conflict + one, f"rq:job:{job}")
    moving.zrem(here.open, one)
