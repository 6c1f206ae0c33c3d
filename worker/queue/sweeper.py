"""The sweeper requeues orphaned events: open events that nothing is working on.

RQ loses sight of a job in several ways: a process is killed between two of its commands, a hash is evicted, a reply is
lost. The store does not. An open event belongs to exactly one of these: RQ's queue, RQ's schedule, a worker's lease, or
the list behind another event of its resource. An event that is in none of them is enqueued again. To do so once too
often is harmless: the second job finds the claim, or the settled record, and leaves.

The sweeper also completes settlements that were broken off, sets records aside that cannot be read, removes expired
events from the event index, brings times forward after Redis's clock was set back, sums up the deliveries of each hour,
and notes each minute how many events are open.
"""

import itertools
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, cast
from uuid import uuid4

import structlog
from rq import Queue
from rq.worker_registration import clean_worker_registry

from credhook.store.arrivals import sum_up
from credhook.store.counts import counts_of
from credhook.store.job import event_of, job_id
from credhook.store.store import SyncStore
from credhook.store.traffic import write_sample
from credhook.worker import metrics
from credhook.worker.queue.clock import ClockWatch, bring_forward, running_seconds
from credhook.worker.queue.leases import IN_TRANSIT_MS, put_back
from credhook.worker.queue.unhandled import Unhandled

log = structlog.get_logger("credhook.sweeper")

#: Time that RQ's record of a started job outlives the last renewal, before it is deleted.
_RQ_RECORD_LASTS_SECONDS: Final = 600
#: Time in which nearly all events are settled. From then on a record lives for the retention time.
_SETTLED_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
#: Events that one line of the log names.
_MOST_NAMED: Final = 20
_LOSS_HINT: Final = (
    "Redis has lost records of acknowledged events: see its maxmemory-policy, FLUSHDB and DEL; then run "
    "`credhook events backfill`"
)
#: Old entries that one command removes.
_OLD: Final = 5_000


class Sweeper:
    """Looks through the open events of one queue. Of all processes that try, one leads."""

    def __init__(
        self,
        store: SyncStore,
        *,
        name: str,
        interval: float,
        lease: float,
        wanted: Mapping[str, Collection[str]] = MappingProxyType({}),
        head: int = 1_000,
        page: int = 10_000,
        index_page: int = 500,
        index_pages: int = 40,
        clock: Callable[[], float] = running_seconds,
    ) -> None:
        """Prepare for a round every `interval` seconds. `name` is unique in the fleet; `lease`: its length in seconds.

        `wanted`: event type → names of the handlers that this process has for it. A round looks at `head` jobs of the
        queue, to find when the oldest of them moved. It reads open events by the `page`, and deals with about as many
        orphans. It looks at `index_page` entries of the index and of lists in each of `index_pages` scripts. `clock`:
        seconds that never step.
        """
        self._store = store
        self._name, self._lease, self._clock = name, lease, ClockWatch(store, lease=lease, clock=clock)
        self._head, self._page, self._index_page, self._index_pages = head, page, index_page, index_pages
        #: Each process does this, since the holder of the lock may lack a handler.
        self.unhandled = Unhandled(store, wanted=wanted)
        #: The list that the next round looks at first, and where it begins there; see sweep.lua.
        self._next: tuple[str, str | int] = (store.keys.by_time, "-")
        self._lock_ms = max(1_000, int(interval * 3_000))
        #: As the last round has seen them: the queue's mark, the number of events that were not done, and the last
        #: entry of the index.
        self._mark, self._undone_events, self._last_entry = b"", 0, "0-1"
        #: Number of open events, from the oldest on, that the next round leaves out: the last round has seen them.
        self._start = 0
        #: The hour in which the deliveries of the hours before were summed up.
        self._summed_up = 0
        #: True if this process has led the last round.
        self.leads = False

    def run(self) -> int:
        """Run one round, and return the number of orphans that were put back."""
        now, _ = self._clock.look()
        self._watch_for_loss()
        self.unhandled.put_back()
        # Take or renew the lock. Another process gets it after three rounds without its holder.
        # Its script compares the schema number, before commands that are in no script.
        self.leads = bool(self._store.run("process_lock", ["sweeper", self._name, self._lock_ms]))
        if not self.leads:
            return 0
        if now // _HOUR_MS != self._summed_up:
            sum_up(self._store, now)
            self._summed_up = now // _HOUR_MS
        write_sample(self._store, counts_of(self._store, self._store.keys, now=now / 1_000), now)
        if early := bring_forward(self._store, now, lease=self._lease):
            log.warning("events_brought_forward", count=early, hint="Redis's clock was set back")
        self._forget(now)
        requeued, vanished = list[str](), list[str]()
        unreadable: dict[str, str] = {}
        for event_id in self._orphans(now):
            outcome = put_back(self._store, event_id)
            if isinstance(outcome, bytes):
                unreadable[event_id.encode("ascii", "backslashreplace").decode()] = outcome.decode()
            elif outcome:
                (requeued if outcome > 0 else vanished).append(event_id)
        # These have left their places.
        self._start = max(0, self._start - len(requeued) - len(unreadable) - len(vanished))
        if requeued:
            metrics.REQUEUED.add(by=len(requeued))
            log.warning("events_put_back", count=len(requeued))
        if vanished:
            named = [event_id.encode("ascii", "backslashreplace").decode() for event_id in vanished[:_MOST_NAMED]]
            log.error("events_vanished", count=len(vanished), events=named, hint=_LOSS_HINT)
        if unreadable:
            hint = "something else has written to their records; see `credhook events list --state unreadable`"
            described = dict(itertools.islice(unreadable.items(), _MOST_NAMED))
            log.error("events_unreadable", count=len(unreadable), events=described, hint=hint)
        self._sweep_lists(now)
        return len(requeued)

    def _watch_for_loss(self) -> None:
        """Note if Redis has lost all data of the queue since the last round, as after FLUSHDB.

        The events that were not done are counted. Their ids are lost with their index.
        """
        keys, redis = self._store.keys, self._store.redis
        pipeline = redis.pipeline(transaction=False)
        for key in (keys.open, keys.dead, keys.quarantined, *keys.all_unhandled):
            pipeline.zcard(key)
        pipeline.xrevrange(keys.by_time, count=1)
        pipeline.xrange(keys.by_time, self._last_entry, self._last_entry)
        *numbers, newest, last = pipeline.execute()
        # An index that still has its last entry was not emptied: then the mark alone is gone.
        lost = 0 if last else self._undone_events
        self._mark, is_first = self._store.run("emptied", [f"{uuid4()}", self._mark, lost])
        if is_first:
            log.error("store_emptied", events=lost, hint=_LOSS_HINT)
        self._undone_events, self._last_entry = sum(numbers), newest[0][0] if newest else "0-1"

    def _forget(self, now: int) -> None:
        keys, redis = self._store.keys, self._store.redis
        redis.delete(keys.unfinished)
        old = now - self._store.retention * 1_000
        until = dict.fromkeys((keys.dead, *keys.all_unhandled, keys.quarantined, keys.unreadable, keys.leases), old)
        self._remove(until | {keys.started: now // 1_000 - _RQ_RECORD_LASTS_SECONDS})
        clean_worker_registry(Queue(keys.queue, connection=redis))

    def _remove(self, until: dict[str, int]) -> None:
        """Remove the entries of these sets up to a score, in bounded steps: one command for a million would hold Redis.

        One round trip reads all sets that may have more.
        """
        redis = self._store.redis
        for _ in range(self._index_pages):
            reading = redis.pipeline(transaction=False)
            for key, score in until.items():
                reading.zrange(key, 0, score, byscore=True, offset=0, num=_OLD)
            for key, old in zip(tuple(until), reading.execute(), strict=True):
                if old:
                    redis.zrem(key, *old)
                if len(old) < _OLD:
                    del until[key]
            if not until:
                return

    def _sweep_lists(self, now: int) -> None:
        """Remove events from index and lists that their records do not confirm, in bounded steps.

        A round goes on where the last one has ended.
        """
        store, keys = self._store, self._store.keys
        swept = [keys.by_time, keys.dead, keys.quarantined, *keys.all_unhandled]
        before = now - store.retention * 1_000 - _SETTLED_MS
        key, start = self._next
        for _ in range(self._index_pages):
            reply = store.run("sweep", [start, self._index_page, before], keys=[keys.prefix, key])
            start = reply.decode() if isinstance(reply, bytes) else reply
            if start == "":
                place = swept.index(key) + 1
                if place == len(swept):
                    self._next = keys.by_time, "-"
                    return
                key, start = swept[place], 0
        self._next = key, start

    def _orphans(self, now: int) -> list[str]:
        """Return open events that should have come up by now, and whose job is neither queued nor scheduled.

        The queue is worked off in order: a job that moved after the head of the queue did will come up. So a long queue
        need not be read to its end.
        """
        keys, redis = self._store.keys, self._store.redis
        jobs = cast(list[bytes], redis.lrange(keys.jobs, 0, self._head - 1))
        until: float = now - IN_TRANSIT_MS
        if len(jobs) == self._head:
            until = min(until, self._oldest(jobs) - IN_TRANSIT_MS)
        # A job that is overdue has no scheduler: RQ lets the lock of a dead scheduler stand for a minute.
        overdue = (now - IN_TRANSIT_MS) / 1_000
        queued = set(jobs)
        orphans: list[str] = []
        size = self._page
        for start in itertools.count(self._start, size):
            page = cast(list[bytes], redis.zrangebyscore(keys.open, "-inf", until, start=start, num=size))
            ids = [name.decode(errors="surrogateescape") for name in page]
            job_ids = [job_id(keys.queue, event_id).encode() for event_id in ids]
            due = redis.zmscore(keys.scheduled, cast(list[str], job_ids)) if job_ids else []
            orphans += (
                event_id
                for event_id, job, at in zip(ids, job_ids, due, strict=True)
                if job not in queued and (at is None or at < overdue)
            )
            if len(page) < size or len(orphans) >= size:
                # Events that stay where they are must not hide the events behind them.
                self._start = 0 if len(page) < size else start + size
                break
        return orphans

    def _oldest(self, jobs: list[bytes]) -> float:
        """Return when the first of these jobs' events moved, in ms; 0 if none of them is open."""
        events = (event_of(self._store.queue, job.decode(errors="surrogateescape")) for job in jobs)
        ids = [event_id.encode(errors="surrogateescape") for event_id in events if event_id is not None]
        moved = self._store.redis.zmscore(self._store.keys.open, cast(list[str], ids)) if ids else []
        return min((score for score in moved if score is not None), default=0.0)
