"""Finds accepted events that nothing is working on, and puts them back into the queue.

RQ loses sight of a job in several ways (a process killed between two of its commands, an evicted hash, a reply that
never came); the ledger does not. An open event is at home in exactly one of these: RQ's queue, RQ's schedule, a
worker's lease, or behind another event of its resource that a worker holds. Whatever is in none of them is enqueued
again. Doing so once too often is harmless: the second job finds the claim, or the settled record, and leaves.
"""

import itertools
from datetime import UTC, datetime
from typing import Final, cast
from zlib import crc32

import structlog
from redis import Redis
from rq import Queue
from rq.worker_registration import clean_worker_registry

from receiver.ledger import EVENT, Index, State, job_data, job_fields, job_id, lua

log = structlog.get_logger("credhook.reconciler")

#: Milliseconds that an event may be between two homes: popped by RQ but not claimed yet, settled but not scheduled yet.
IN_TRANSIT: Final = 5_000
#: Jobs at the head of the queue that are looked at, to tell from when the oldest of them is.
HEAD: Final = 1_000
#: Open events that are read at once, and suspects that one round deals with at most.
PAGE: Final = 10_000
MOST: Final = 10_000
#: Attempts after which an event whose worker died under it has to wait, and for how long at most, in ms: first up to
#: FIRST_DELAY, then twice that, and so on. One that takes its worker along would otherwise meet the same others again.
PATIENT_FOR: Final = 2
FIRST_DELAY: Final = 5_000
LONGEST_DELAY: Final = 600_000
#: Seconds that RQ's record of a started job outlives its worker's last sign of life, before we clear it away.
_RQ_RECORD_LASTS: Final = 600

#: KEYS: event, open, leases, RQ's schedule, failed jobs, queue, job, started jobs, the job's executions, urgent,
#: popped jobs.
#: ARGV: webhook-id, job's id, data, in-transit ms, prefix of busy, attempts that are put back at once, chance from 0 to
#: 1, then fields and values of the job. All that makes an event homeless is decided here, by Redis's clock, but for the
#: one thing that would cost a walk through the queue for each event: whether the job stands in it.
_PUT_BACK: Final = f"""{lua.NOW}{lua.URGENT}
local id, job, data, transit, busy, patient, chance = unpack(ARGV)
local state, due, resource, attempts, type =
    unpack(redis.call('HMGET', KEYS[1], 'state', 'due', 'resource', 'attempts', 'type'))
if state ~= '{State.ACCEPTED}' and state ~= '{State.WAITING}' then
    redis.call('ZREM', KEYS[2], id)
    return 0
end
if due and due + transit > now then return 0 end
local moved = redis.call('ZSCORE', KEYS[2], id)
if not moved or now - moved < tonumber(transit) then return 0 end
local lease = redis.call('ZSCORE', KEYS[3], id)
if lease and tonumber(lease) > now then return 0 end
if lease and tonumber(attempts) > tonumber(patient) then
    local delay = math.min({LONGEST_DELAY}, {FIRST_DELAY} * 2 ^ (attempts - patient - 1))
    if now < lease + delay * chance then return 0 end
end
local holder = redis.call('GET', busy .. resource)
if holder and holder ~= id then return 0 end
redis.call('ZREM', KEYS[3], id)
redis.call('ZADD', KEYS[2], now, id)
redis.call('ZREM', KEYS[4], job)
redis.call('ZREM', KEYS[5], job)
redis.call('LREM', KEYS[11], 0, job)
for _, execution in ipairs(redis.call('ZRANGE', KEYS[9], 0, -1)) do
    redis.call('ZREM', KEYS[8], job .. ':' .. execution)
    redis.call('DEL', 'rq:execution:' .. job .. ':' .. execution)
end
redis.call('DEL', KEYS[7], KEYS[9])
redis.call('HSET', KEYS[7], 'data', data, unpack(ARGV, 8))
redis.call('SADD', 'rq:queues', KEYS[6])
redis.call('RPUSH', KEYS[6], job)
if is_urgent(type) then hint(KEYS[10], job) end
return 1
"""


class Reconciler:
    """Looks through the open events of one queue; of all processes that try, one leads."""

    def __init__(self, redis: Redis, *, queue: str, name: str, interval: float, retention: int) -> None:
        """Prepare.

        Args:
            redis: the ledger.
            queue: whose events.
            name: this process, unique in the fleet.
            interval: seconds between two rounds of it.
            retention: seconds after which the dead and the quarantined are forgotten.
        """
        self._redis = redis
        self._index = Index(queue)
        self._name = name
        self._put_back = redis.register_script(_PUT_BACK)
        self._leads_for = max(1_000, int(interval * 3_000))
        self._retention = retention

    def run(self) -> int:
        """One round, if this process leads; the number of events that were put back."""
        if not self._leads():
            return 0
        now = self._now()
        for settled in (self._index.dead, self._index.quarantined):
            self._redis.zremrangebyscore(settled, 0, now - self._retention * 1_000)
        self._redis.zremrangebyscore(self._index.started, 0, now // 1_000 - _RQ_RECORD_LASTS)
        clean_worker_registry(Queue(self._index.queue, connection=self._redis))
        put_back = sum(self._enqueue(event_id) for event_id in self._suspects(now))
        if put_back:
            log.warning("events_put_back", count=put_back)
        return put_back

    def _leads(self) -> bool:
        """Become or remain the leader; a leader that dies is followed after three rounds."""
        if self._redis.set(self._index.leader, self._name, nx=True, px=self._leads_for):
            return True
        if self._redis.get(self._index.leader) != self._name.encode():
            return False
        self._redis.pexpire(self._index.leader, self._leads_for)
        return True

    def _now(self) -> int:
        """Milliseconds since the epoch, as Redis sees it: hosts may disagree."""
        seconds, microseconds = self._redis.time()
        return seconds * 1_000 + microseconds // 1_000

    def _suspects(self, now: int) -> list[str]:
        """Open events that should have come up by now, and whose job is neither queued nor waiting for its time.

        The queue is worked off in order: whatever has moved since the head of it did will come up, so that a long
        queue need not be looked through.
        """
        jobs = cast(list[bytes], self._redis.lrange(self._index.jobs, 0, HEAD - 1))
        until: float = now - IN_TRANSIT
        if len(jobs) == HEAD:
            until = min(until, self._oldest(jobs) - IN_TRANSIT)
        # A job that is overdue has no scheduler: RQ lets the lock of a dead one stand for a minute.
        ahead = cast(list[bytes], self._redis.zrangebyscore(self._index.scheduled, (now - IN_TRANSIT) / 1_000, "+inf"))
        at_home = {*jobs, *ahead}
        found: list[str] = []
        for start in itertools.count(0, PAGE):
            page = cast(list[bytes], self._redis.zrangebyscore(self._index.open, 0, until, start=start, num=PAGE))
            found += (one.decode() for one in page if job_id(one.decode()).encode() not in at_home)
            if len(page) < PAGE or len(found) >= MOST:
                break
        return found[:MOST]

    def _oldest(self, jobs: list[bytes]) -> float:
        """When the event that has waited longest among those of these jobs moved, in ms; 0 if none of them is known."""
        # A digest does not say whose it is.
        ids = [job.decode().removeprefix("e-") for job in jobs if job.startswith(b"e-")]
        moved = self._redis.zmscore(self._index.open, ids) if ids else []
        return min((score for score in moved if score is not None), default=0.0)

    def _enqueue(self, event_id: str) -> int:
        index, job = self._index, job_id(event_id)
        keys = [
            EVENT + event_id,
            index.open,
            index.leases,
            index.scheduled,
            index.failed,
            index.jobs,
            f"rq:job:{job}",
            index.started,
            f"rq:executions:{job}",
            index.urgent,
            index.intermediate,
        ]
        # The same for all rounds, another for each event: those that died together should not return together.
        chance = crc32(event_id.encode()) / 2**32
        arguments: list[str | int | float | bytes] = [
            event_id,
            job,
            job_data(event_id),
            IN_TRANSIT,
            index.busy,
            PATIENT_FOR,
            chance,
        ]
        for name, value in job_fields(index.queue, datetime.now(UTC)).items():
            arguments += name, value
        return int(cast(int, self._put_back(keys=keys, args=arguments)))
