"""Finds accepted events that nothing is working on, and puts them back into the queue.

RQ loses sight of a job in several ways (a process killed between two of its commands, an evicted hash, a reply that
never came); the ledger does not. An open event is at home in exactly one of these: RQ's queue, RQ's schedule, a
worker's lease, or behind another event of its resource that a worker holds. Whatever is in none of them is enqueued
again. Doing so once too often is harmless: the second job finds the claim, or the settled record, and leaves.

It is also who deals with what somebody else has written into Redis: a record that cannot be read is set aside and named
in the log, a settlement that was broken off is completed, and what has no record goes. And it has the lists of events
kept, by worker/queue/upkeep.py.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, cast

import structlog
from redis import Redis
from redis.exceptions import ResponseError
from rq import Queue
from rq.worker_registration import clean_worker_registry

from credhook.store import Keys
from credhook.store.job import event_of, job_id
from credhook.worker import metrics
from credhook.worker.queue.group_commit import is_unwell
from credhook.worker.queue.put_back import IN_TRANSIT, PutBack
from credhook.worker.queue.rounds import clock
from credhook.worker.queue.unhandled import Unhandled
from credhook.worker.queue.upkeep import Upkeep

log = structlog.get_logger("credhook.reconciler")

#: Jobs at the head of the queue that are looked at, to tell from when the oldest of them is.
HEAD: Final = 1_000
#: Open events that are read at once, and suspects that one round deals with at most.
PAGE: Final = 10_000
MOST: Final = 10_000
#: Seconds that RQ's record of a started job outlives its worker's last sign of life, before we clear it away.
_RQ_RECORD_LASTS: Final = 600
#: Events that one line of the log names.
_MOST_NAMED: Final = 20
#: How Redis says that a key has no expiry, and milliseconds that a leader's can be away: twice three rounds of the
#: longest lease.
_NO_END: Final = -1
_LONGEST_LEAD: Final = 600_000


class Reconciler:
    """Looks through the open events of one queue; of all processes that try, one leads."""

    def __init__(
        self,
        redis: Redis,
        *,
        queue: str,
        name: str,
        interval: float,
        retention: int,
        wanted: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        """`name`: unique in the fleet; `interval`: seconds between two rounds of this process.

        `retention`: seconds after which the dead, the unhandled, the quarantined and the unreadable are forgotten;
        `wanted`: event type → the names of the handlers that this process has for it.
        """
        self._redis = redis
        self._index = Keys(queue)
        self._name = name
        self._put_back = PutBack(redis, queue=queue, retention=retention)
        #: Looked through by every process, since the one that leads may lack a handler.
        self.unhandled = Unhandled(redis, queue=queue, wanted=wanted)
        self._upkeep = Upkeep(redis, queue=queue, retention=retention)
        self._leads_for = max(1_000, int(interval * 3_000))
        self._retention = retention
        #: How many of the open events, from the oldest on, the next round leaves out: the last one has looked at them.
        self._start = 0
        #: What was last found to be of another type than ours.
        self._odd: set[str] = set()

    def run(self) -> int:
        """One round; the number of events that were put back because they were at home nowhere, if this process leads.

        What somebody else has written does not end the round: what can be looked through is.
        """
        with _noted("unhandled_not_put_back"):
            self.unhandled.put_back()
        if not self._leads():
            return 0
        self._look_at_keys()
        now = clock(self._redis)
        self._clear_away(now)
        put_back: list[str] = []
        unreadable: dict[str, str] = {}
        failed: list[str] = []
        for event_id in self._stranded(now):
            try:
                became = self._put_back(event_id)
            except ResponseError as error:
                if is_unwell(error):
                    raise
                failed.append(event_id)
                continue
            if isinstance(became, bytes):
                unreadable[event_id] = became.decode()
            elif became:
                put_back.append(event_id)
        self._start = max(0, self._start - len(put_back) - len(unreadable))  # These have left their places.
        if put_back:
            metrics.RECONCILED.add(by=len(put_back))
            log.warning("events_put_back", count=len(put_back))
        if unreadable:
            hint = "somebody else has written to their records; see `credhook events list --state unreadable`"
            log.error("events_unreadable", count=len(unreadable), events=_named(unreadable), hint=hint)
        if failed:
            log.error("events_not_put_back", count=len(failed), events=_named(dict.fromkeys(failed, "")))
        with _noted("lists_not_kept"):
            self._upkeep.run(now)
        return len(put_back)

    def _leads(self) -> bool:
        """Become or remain the leader; a leader that dies is followed after three rounds."""
        if self._redis.set(self._index.leader, self._name, nx=True, px=self._leads_for):
            return True
        try:
            left = self._redis.pttl(self._index.leader)
            if left == _NO_END or left > _LONGEST_LEAD:  # It would lead for ever: somebody else has written it.
                log.warning("leader_replaced", key=self._index.leader, hint="who else writes to this Redis?")
            elif self._redis.get(self._index.leader) != self._name.encode():
                return False
            else:
                self._redis.pexpire(self._index.leader, self._leads_for)
                return True
        except ResponseError as error:
            if is_unwell(error):
                raise
            # Of another type: nobody's. Whoever writes it next leads.
        self._redis.set(self._index.leader, self._name, px=self._leads_for)
        return True

    def _look_at_keys(self) -> None:
        """Name each key of the queue that is of another type than ours, once."""
        pipeline = self._redis.pipeline(transaction=False)
        types = _types(self._index)
        for key in types:
            pipeline.type(key)
        found = dict(zip(types, (kind.decode() for kind in pipeline.execute()), strict=True))
        odd = {key for key, kind in found.items() if kind not in {types[key], "none"}}
        if new := sorted(odd - self._odd):
            hint = "somebody else has written to them; rename or delete them"
            log.error("keys_unusable", keys={key: f"{found[key]}, not {types[key]}" for key in new}, hint=hint)
        self._odd = odd

    def _clear_away(self, now: int) -> None:
        """Forget what is older than the retention time, and what RQ remembers of workers that are gone."""
        index = self._index
        for key in (index.dead, *index.all_unhandled, index.quarantined, index.unreadable, index.leases):
            if key not in self._odd:
                self._redis.zremrangebyscore(key, 0, now - self._retention * 1_000)
        if index.started not in self._odd:
            self._redis.zremrangebyscore(index.started, 0, now // 1_000 - _RQ_RECORD_LASTS)
        try:
            clean_worker_registry(Queue(index.queue, connection=self._redis))
        except (ResponseError, ValueError) as error:  # RQ's own sets of workers may be damaged as well.
            log.warning("rq_workers_not_cleared", error=type(error).__name__)

    def _stranded(self, now: int) -> list[str]:
        """Open events that should have come up by now, and whose job is neither queued nor waiting for its time.

        The queue is worked off in order: whatever has moved since the head of it did will come up, so that a long
        queue need not be looked through.
        """
        index = self._index
        if {index.open, index.leases, index.locks, index.jobs} & self._odd:
            return []
        jobs = cast(list[bytes], self._redis.lrange(index.jobs, 0, HEAD - 1))
        until: float = now - IN_TRANSIT
        if len(jobs) == HEAD:
            until = min(until, self._oldest(jobs) - IN_TRANSIT)
        at_home = set(jobs)
        if index.scheduled not in self._odd:
            # A job that is overdue has no scheduler: RQ lets the lock of a dead one stand for a minute.
            overdue = (now - IN_TRANSIT) / 1_000
            at_home |= set(cast(list[bytes], self._redis.zrangebyscore(index.scheduled, overdue, "+inf")))
        found: list[str] = []
        for start in itertools.count(self._start, PAGE):
            page = cast(list[bytes], self._redis.zrangebyscore(index.open, 0, until, start=start, num=PAGE))
            ids = [one.decode(errors="surrogateescape") for one in page]
            found += (one for one in ids if job_id(index.queue, one).encode() not in at_home)
            if len(page) < PAGE or len(found) >= MOST:
                # What stays where it is, whatever is done about it, should not hide what comes after it.
                self._start = 0 if len(page) < PAGE else start + PAGE
                break
        return found

    def _oldest(self, jobs: list[bytes]) -> float:
        """When the event that has waited longest among those of these jobs moved, in ms; 0 if none of them is known."""
        queue = self._index.queue
        named = (event_of(queue, job.decode(errors="surrogateescape")) for job in jobs)
        ids = [one.encode(errors="surrogateescape") for one in named if one is not None]
        moved = self._redis.zmscore(self._index.open, cast(list[str], ids)) if ids else []
        return min((score for score in moved if score is not None), default=0.0)


@contextmanager
def _noted(event: str) -> Iterator[None]:
    """Go on, with a line in the log, where Redis refuses what is done meanwhile."""
    try:
        yield
    except ResponseError as error:
        if is_unwell(error):
            raise
        log.error(event, error=type(error).__name__)  # noqa: TRY400  `_look_at_keys` says why.


def _types(index: Keys) -> dict[str, str]:
    """Each key of a queue → the type that it has, as Redis names it."""
    sets = (
        index.open, index.opened, index.leases, index.workers, index.dead, *index.all_unhandled, index.quarantined,
        index.unreadable, index.reconciled, index.causes, index.solitary, index.scheduled, index.started, index.failed,
    )  # fmt: skip
    lists = (index.jobs, index.intermediate, index.urgent)
    hashes = (index.locks, index.handlers)
    types = {"zset": sets, "list": lists, "hash": hashes, "set": (index.arrivals,)}
    return {key: kind for kind, keys in types.items() for key in keys}


def _named(events: dict[str, str]) -> dict[str, str]:
    """The first of these events, for the log: no id that is no Unicode, and no endless line."""
    return {
        event_id.encode("ascii", "backslashreplace").decode(): what
        for event_id, what in itertools.islice(events.items(), _MOST_NAMED)
    }
