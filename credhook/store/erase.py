"""Erase events, and all data that the store keeps for them. Hashes are left, so that nothing brings them back.

Each erasure is recorded without ids: who erased how many events of which types, and when.
"""

import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, cast

from redis.client import Pipeline

from credhook.store import State
from credhook.store.bulk import BATCH, batched
from credhook.store.history import time_of
from credhook.store.job import job_id
from credhook.store.replay import LONGEST_NAME
from credhook.store.selection import PAGE, EventSummary, Selection, read_page
from credhook.store.store import SyncStore

#: The script's outcome → words for an event that was erased, or was left.
ERASED: Final = {"erased": "", "held": "while a worker had it"}
NOT_ERASED: Final = {"changed": "changed meanwhile", "missing": "not in the store"}


class Erasure:
    """Erases the selected events, a few hundred in one script. Each step raises RedisError if Redis fails."""

    def __init__(self, store: SyncStore, selection: Selection, *, by: str = "") -> None:
        """`by` names the operator in the record of the erasure."""
        self._store = store
        self._selection = selection
        self._id = secrets.token_hex(8)
        self._by = by[:LONGEST_NAME].encode(errors="replace").decode()

    def __call__(self, batch: Sequence[EventSummary]) -> Sequence[bytes]:
        """Erase these events and return the outcome of each.

        A selected resource counts as erased from then on, also if it has no events.
        """
        resource = self._selection.resource or ""
        arguments = [str(self._store.retention), secrets.token_hex(16), resource, self._id, self._by]
        for event in batch:
            # An event that was selected by its state is kept if it has left that state since.
            state = event.state if self._selection.states else ""
            arguments += event.webhook_id, job_id(self._store.queue, event.webhook_id), state
        return cast(Sequence[bytes], self._store.run("erase", arguments))

    def finish(self, events: Sequence[EventSummary]) -> Sequence[bytes]:
        """Erase what lies outside the records: of events without a readable record, and of the selected resource.

        Return the outcomes of further events, which the resource got after `events` were selected.
        """
        late: Sequence[bytes] = ()
        if strays := {event.webhook_id for event in events if event.state in {State.UNREADABLE, ""}}:
            self._forget(strays)
        if self._selection.resource is not None:
            late = self._late(events)
            self._forget_resource(self._selection.resource)
        return late

    def _late(self, events: Sequence[EventSummary]) -> Sequence[bytes]:
        """Erase the events that a delivery or a backfill brought before the resource was marked as erased."""
        if not events:
            self([])
        if self._selection.limit is not None:  # Then other events of the resource are to stay.
            return ()
        before = {event.webhook_id for event in events}
        late = (event for event in read_page(self._store, self._selection).events if event.webhook_id not in before)
        return [outcome for batch in batched(late, BATCH) for outcome in self(batch)]

    def _forget(self, strays: Collection[str]) -> None:
        """Remove the events from the index and from RQ's started jobs, and free their locks."""
        store, redis = self._store, self._store.redis
        names, jobs = {stray.encode() for stray in strays}, {job_id(store.queue, stray).encode() for stray in strays}
        pipeline = redis.pipeline(transaction=False)
        start = "-"
        while entries := cast(Any, redis.xrange(store.keys.by_time, start, count=PAGE)):
            start = f"({entries[-1][0].decode()}"
            self._remove(pipeline, [entry for entry, fields in entries if fields[b"event"] in names])
        for resource, lock in redis.hscan_iter(store.keys.locks, count=PAGE):
            if lock.rsplit(b" ", 3)[0] in names:
                pipeline.hdel(store.keys.locks, resource)
        for execution, _ in redis.zscan_iter(store.keys.started, count=PAGE):
            if execution.partition(b":")[0] in jobs:
                pipeline.zrem(store.keys.started, execution)
        pipeline.execute()

    def _remove(self, pipeline: Pipeline, entries: Sequence[bytes]) -> None:
        """Remove these entries from the index."""
        if entries:
            pipeline.zrem(self._store.keys.by_resource, *entries)
            pipeline.xdel(self._store.keys.by_time, *entries)

    def _forget_resource(self, resource: str) -> None:
        """Erase the kept data of the resource, the conflicting deliveries that name it, and lost entries."""
        keys, redis = self._store.keys, self._store.redis
        redis.delete(keys.snapshot + resource)
        score = keys.resource_score(resource)
        for page in batched(cast(list[bytes], redis.zrange(keys.by_resource, score, score, byscore=True)), PAGE):
            pipeline = redis.pipeline(transaction=False)
            for entry in page:
                pipeline.xrange(keys.by_time, entry, entry)
            names = [entries[0][1][b"event"] if entries else b"" for entries in pipeline.execute()]
            for webhook_id in names:
                pipeline.exists(keys.event.encode() + webhook_id)
            is_there = pipeline.execute()
            self._remove(pipeline, [entry for entry, there in zip(page, is_there, strict=True) if not there])
            pipeline.execute()
        for page in batched(redis.scan_iter(match=keys.conflict + "*", count=PAGE), PAGE):
            pipeline = redis.pipeline(transaction=False)
            for key in page:
                pipeline.hkeys(key)
            for key, fields in zip(page, pipeline.execute(), strict=True):
                if theirs := [field for field in fields if field.partition(b" ")[2] == resource.encode()]:
                    redis.hdel(key, *theirs)


def lift(store: SyncStore, resource: str) -> bool:
    """Let deliveries and backfills bring events of an erased resource again. Return False if none were erased."""
    return bool(store.run("lift", [resource]))


def erasures(store: SyncStore) -> Iterator[dict[str, Any]]:
    """Yield the recorded erasures, oldest first: `at`, `by`, `whole` (a resource as a whole), `types` with numbers."""
    for line in cast(list[bytes], store.redis.lrange(store.keys.erasures, 0, -1)):
        entry = json.loads(line)
        whole = bool(entry["whole"])
        yield {"at": time_of(int(entry["at"])), "by": entry["by"], "whole": whole, "types": entry["types"]}
