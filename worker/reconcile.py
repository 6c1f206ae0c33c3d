"""Finds accepted events that nothing is working on, and puts them back into the queue.

RQ loses sight of a job in several ways (a process killed between two of its commands, an evicted hash, a reply that
never came); the ledger does not. An open event is at home in exactly one of these: RQ's queue, RQ's schedule, a
worker's lease. Whatever is in none of them is enqueued again. Doing so once too often is harmless: the second job
finds the claim, or the settled record, and leaves.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, cast

import structlog
from redis import Redis

from receiver.ledger import EVENT, Index, State, job_data, job_fields, job_id

log = structlog.get_logger("credhook.reconciler")

#: Milliseconds that an event may be between two homes: popped by RQ but not claimed yet, settled but not scheduled yet.
IN_TRANSIT: Final = 5_000

#: KEYS: event, open, leases, RQ's schedule, failed jobs, queue, job. ARGV: webhook-id, job's id, data, in-transit ms,
#: then fields and values of the job. All that makes an event homeless is decided here, by Redis's clock, but for the
#: one thing that would cost a walk through the queue for each event: whether the job stands in it.
_PUT_BACK: Final = f"""
local time = redis.call('TIME') local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id, job, data, transit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local state, due = unpack(redis.call('HMGET', KEYS[1], 'state', 'due'))
if state ~= '{State.ACCEPTED}' and state ~= '{State.WAITING}' then
    redis.call('ZREM', KEYS[2], id)
    return 0
end
if due and tonumber(due) + transit > now then return 0 end
local moved = redis.call('ZSCORE', KEYS[2], id)
if not moved or now - moved < transit then return 0 end
local lease = redis.call('ZSCORE', KEYS[3], id)
if lease and tonumber(lease) > now then return 0 end
redis.call('ZREM', KEYS[3], id)
redis.call('ZADD', KEYS[2], now, id)
redis.call('ZREM', KEYS[4], job)
redis.call('ZREM', KEYS[5], job)
redis.call('DEL', KEYS[7])
redis.call('HSET', KEYS[7], 'data', data, unpack(ARGV, 5))
redis.call('SADD', 'rq:queues', KEYS[6])
redis.call('RPUSH', KEYS[6], job)
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

    def _suspects(self, now: int) -> Iterable[str]:
        """Open events that have not moved for a while, and whose job is neither queued nor waiting for its time."""
        until = now - IN_TRANSIT
        # Read before the places are: one that moves in between is found in its new place, or told apart by the script.
        still = [raw.decode() for raw in cast(list[bytes], self._redis.zrangebyscore(self._index.open, 0, until))]
        if not still:
            return
        queued = set(cast(list[bytes], self._redis.lrange(self._index.jobs, 0, -1)))
        # A job that is overdue has no scheduler: RQ lets the lock of a dead one stand for a minute.
        ahead = set(cast(list[bytes], self._redis.zrangebyscore(self._index.scheduled, until // 1_000, "+inf")))
        at_home = queued | ahead
        yield from (event_id for event_id in still if job_id(event_id).encode() not in at_home)

    def _enqueue(self, event_id: str) -> int:
        index, job = self._index, job_id(event_id)
        keys = [EVENT + event_id, index.open, index.leases, index.scheduled, index.failed, index.jobs, f"rq:job:{job}"]
        arguments: list[str | int | bytes] = [event_id, job, job_data(event_id), IN_TRANSIT]
        for name, value in job_fields(index.queue, datetime.now(UTC)).items():
            arguments += name, value
        return int(cast(int, self._put_back(keys=keys, args=arguments)))
