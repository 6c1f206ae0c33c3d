"""`credhook events move`: bring the events of another queue over, such as those of a misspelt CREDHOOK_QUEUE."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

import click

from credhook.store import State
from credhook.store.announcements import announced
from credhook.store.job import job_fields, job_id
from credhook.store.store import Store, SyncStore
from credhook.worker.commands.batches import BATCH, batched, report, work_through
from credhook.worker.commands.search import EventSummary, Selection, open_store, read_page

#: The outcome → words for an event that was moved, or was left.
_MOVED: Final = {"moved": "", "duplicate": "that are in this queue as well"}
_NOT_MOVED: Final = {
    "conflict": "whose id has another type or resource here",
    "held": "that a worker has",
    "sealed": "with presented data that is sealed for that queue",
    "unreadable": "whose record cannot be read",
    "missing": "gone meanwhile",
}
#: The states of events that can be moved.
_STATES: Final = frozenset(State) - {State.UNREADABLE}


@click.command()
@click.option("--from", "source", metavar="QUEUE", required=True, help="The queue that has the events.")
@click.option("--beside-workers", is_flag=True, help="Move them although workers take from that queue.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def move(*, source: str, beside_workers: bool, as_json: bool) -> None:
    """Move all events of another queue of this Redis into the queue that CREDHOOK_QUEUE names.

    They keep their ids, so repeated deliveries are duplicates here, and the handlers that have ended do not run again.
    An event that is in both queues stays as it is here. If the command is broken off, repeat it. Stop the receivers of
    the other queue first, or start them with the right CREDHOOK_QUEUE.
    """
    with open_store() as store:
        other = Store(store.redis, source, retention=store.retention)
        if source == store.queue:
            raise click.UsageError(f"CREDHOOK_QUEUE is {source} itself: name the queue that should get the events")
        other.check_schema(write=False)
        now, known = other.clock(), cast(dict[bytes, bytes], other.redis.hgetall(other.keys.handlers))
        workers = sum(one.is_alive(now) for one in announced(known))
        if workers and not beside_workers:
            remedy = "stop them, or say --beside-workers; some events may then run twice"
            raise click.UsageError(f"workers that take from {source}: {workers}; {remedy}")
        events = read_page(other, Selection()).events[::-1]
        result = work_through(events, Move(other, store), "moving")
        if not result.stopped:
            _tidy(other)
        report(result, "moved", _MOVED, _NOT_MOVED, as_json=as_json)


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
        self._job: Any = job_fields(target.queue, datetime.now(UTC))

    def __call__(self, batch: Sequence[EventSummary]) -> list[bytes]:
        """Move these events in one transaction, again if a record changes meanwhile. Return the outcome of each."""
        ids = [event.webhook_id for event in batch]
        records = [keys.event + one for keys in (self._source.keys, self._target.keys) for one in ids]

        def transact(moving: Any) -> list[bytes]:
            outcomes, known = self._look(ids)
            moving.multi()
            for one, outcome, record in zip(ids, outcomes, known, strict=True):
                if outcome == b"moved":
                    self._write(moving, one, record)
                if outcome in {b"moved", b"duplicate"}:
                    self._forget(moving, one, record)
            return outcomes

        return cast(list[bytes], self._source.redis.transaction(transact, *records, value_from_callable=True))  # type: ignore[arg-type]  # redis-py's gap

    def _look(self, ids: Sequence[str]) -> tuple[list[bytes], list[Any]]:
        here, there = self._source.keys, self._target.keys
        asking = self._source.redis.pipeline(transaction=False)
        for one in ids:
            asking.hgetall(here.event + one)
            asking.hmget(there.event + one, "type", "resource")
            asking.zscore(here.leases, one)
            asking.exists(here.snapshot + one)
        now, replies = self._source.clock(), asking.execute(raise_on_error=False)
        facts = zip(replies[::4], replies[1::4], replies[2::4], replies[3::4], strict=True)
        return [_outcome(*each, now=now) for each in facts], replies[::4]

    def _write(self, moving: Any, one: str, record: dict[bytes, bytes]) -> None:
        """List the event in the target, rename its record, and then enqueue an open event.

        A prefix of these writes loses nothing: the sweeper enqueues open events, and forgets entries without a record.
        """
        here, there = self._source.keys, self._target.keys
        state, kind, resource, received = _fields(record)
        lists = {
            State.WAITING: (there.open, there.open_by_received),
            State.DEAD: (there.dead,),
            State.UNHANDLED: (there.unhandled + kind,),
            State.QUARANTINED: (there.quarantined,),
            State.DONE: (),
        }
        lists |= {State.ACCEPTED: lists[State.WAITING], State.DATA_GONE: lists[State.DEAD]}
        for key in lists[state]:
            moving.zadd(key, {one: record.get(b"settled", received)})
        if b"backfilled" in record:  # As long as in accept.lua.
            moving.set(there.backfilled, 1, ex=2 * self._target.retention)
        moving.zadd(there.event_index("" if state is State.QUARANTINED else kind, resource), {one: received})
        # If the target knows a latest state of the resource, it keeps that.
        for before, after in ((here.history, there.history), (here.conflict, there.conflict)):
            moving.copy(before + one, after + one)
        moving.copy(here.resource + resource, there.resource + resource)
        moving.hdel(here.event + one, "holder")
        moving.renamenx(here.event + one, there.event + one)
        if there.open in lists[state]:
            job = job_id(there.queue, one)
            moving.hset(f"rq:job:{job}", mapping=self._job)
            if b"due" in record:
                moving.zadd(there.scheduled, {job: int(record[b"due"]) / 1_000})
            else:
                moving.sadd("rq:queues", there.jobs)
                moving.rpush(there.jobs, job)

    def _forget(self, moving: Any, one: str, record: dict[bytes, bytes]) -> None:
        here, (_, kind, resource, _) = self._source.keys, _fields(record)
        job, indexes = job_id(here.queue, one), {here.event_index(each, resource) for each in (kind, "")}
        settled = here.dead, here.quarantined, here.unhandled + kind
        for key in (*indexes, *settled, here.leases, here.open_by_received, here.open):
            moving.zrem(key, one)
        moving.zrem(here.scheduled, job)
        moving.delete(here.event + one, here.history + one, here.conflict + one, f"rq:job:{job}")


def _fields(record: dict[bytes, bytes]) -> tuple[State, str, str, bytes]:
    kind, resource = (record[name].decode(errors="backslashreplace") for name in (b"type", b"resource"))
    return State(record[b"state"].decode()), kind, resource, record[b"received"]


def _outcome(record: Any, twin: Any, lease: Any, sealed: Any, *, now: int) -> bytes:
    if isinstance(record, Exception) or isinstance(twin, Exception):
        return b"unreadable"
    if not record:
        return b"missing"
    numbers = record.get(b"received", b""), record.get(b"due", b"0")
    state = record.get(b"state", b"").decode(errors="replace")
    if state not in _STATES or not record.keys() >= {b"type", b"resource"} or not all(map(bytes.isdigit, numbers)):
        return b"unreadable"
    if lease is not None and lease > now:
        return b"held"
    if twin != [None, None]:
        return b"duplicate" if twin == [record[b"type"], record[b"resource"]] else b"conflict"
    return b"sealed" if sealed else b"moved"
