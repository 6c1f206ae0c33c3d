"""Finds accepted events that nothing is working on, and puts them back into the queue.

RQ loses sight of a job in several ways (a process killed between two of its commands, an evicted hash, a reply that
never came); the ledger does not. An open event is at home in exactly one of these: RQ's queue, RQ's schedule, a
worker's lease. Whatever is in none of them is enqueued again. Doing so once too often is harmless: the second job
finds the claim, or the settled record, and leaves.
"""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, cast

import structlog
from redis import Redis

from receiver.ledger import EVENT, LEADER, LEASES, OPEN, State, job_data, job_fields, job_id

log = structlog.get_logger("credhook.reconciler")

#: Milliseconds that an event may be between two homes: popped by RQ but not claimed yet, settled but not scheduled yet.
IN_TRANSIT: Final = 5_000

#: Open events looked at in one round trip.
_PAGE: Final = 1_000

#: ARGV: webhook-id, job, data, queue, in-transit ms, then fields and values of the job. Looks again before it writes,
#: since the snapshot is older than the script.
_PUT_BACK: Final = f"""
local time = redis.call('TIME') local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id, job, data, queue, transit = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local key = '{EVENT}' .. id
local state, due = unpack(redis.call('HMGET', key, 'state', 'due'))
if state ~= '{State.ACCEPTED}' and state ~= '{State.WAITING}' then
    redis.call('ZREM', '{OPEN}', id)
    return 0
end
if due and tonumber(due) > now then return 0 end
local moved = redis.call('ZSCORE', '{OPEN}', id)
if not moved or now - moved < transit then return 0 end
local lease = redis.call('ZSCORE', '{LEASES}', id)
if lease and tonumber(lease) > now then return 0 end
redis.call('ZREM', '{LEASES}', id)
redis.call('ZADD', '{OPEN}', now, id)
redis.call('ZREM', 'rq:scheduled:' .. queue, job)
redis.call('ZREM', 'rq:failed:' .. queue, job)
redis.call('DEL', 'rq:job:' .. job)
redis.call('HSET', 'rq:job:' .. job, 'data', data, unpack(ARGV, 6))
redis.call('SADD', 'rq:queues', 'rq:queue:' .. queue)
redis.call('RPUSH', 'rq:queue:' .. queue, job)
return 1
"""


class Reconciler:
    """Looks through the open events; of all processes that try, one leads."""

    def __init__(self, redis: Redis, *, queue: str, name: str, interval: float) -> None:
        """`name`: this process, unique in the fleet; `interval`: seconds between two rounds of it."""
        self._redis = redis
        self._queue = queue
        self._name = name
        self._put_back = redis.register_script(_PUT_BACK)
        self._leads_for = max(1_000, int(interval * 3_000))

    def run(self) -> int:
        """One round, if this process leads; the number of events that were put back."""
        if not self._leads():
            return 0
        lost = list(self._homeless())
        put_back = sum(self._enqueue(event_id) for event_id in lost)
        if put_back:
            log.warning("events_put_back", count=put_back)
        return put_back

    def _leads(self) -> bool:
        """Become or remain the leader; a leader that dies is followed after three rounds."""
        if self._redis.set(LEADER, self._name, nx=True, px=self._leads_for):
            return True
        if self._redis.get(LEADER) != self._name.encode():
            return False
        self._redis.pexpire(LEADER, self._leads_for)
        return True

    def _homeless(self) -> Iterable[str]:
        """Open events that have not moved for a while and are in none of the places where they could be."""
        until = int(time.time() * 1000) - IN_TRANSIT
        # Open events are read before the places are: one that settles or moves in between is missed in neither.
        still = [raw.decode() for raw in cast(list[bytes], self._redis.zrangebyscore(OPEN, 0, until))]
        if not still:
            return
        queued = set(cast(list[bytes], self._redis.lrange(f"rq:queue:{self._queue}", 0, -1)))
        # A job that is overdue has no scheduler: RQ lets the lock of a dead one stand for a minute.
        due = until // 1_000
        scheduled = set(cast(list[bytes], self._redis.zrangebyscore(f"rq:scheduled:{self._queue}", due, "+inf")))
        at_home = queued | scheduled
        for start in range(0, len(still), _PAGE):
            page = still[start : start + _PAGE]
            leases = self._redis.zmscore(LEASES, page)
            now = time.time() * 1000
            for event_id, lease in zip(page, leases, strict=True):
                leased = lease is not None and lease > now
                if not leased and job_id(event_id).encode() not in at_home:
                    yield event_id

    def _enqueue(self, event_id: str) -> int:
        arguments: list[str | int | bytes] = [
            event_id,
            job_id(event_id),
            job_data(event_id),
            self._queue,
            IN_TRANSIT,
        ]
        for name, value in job_fields(self._queue, datetime.now(UTC)).items():
            arguments += name, value
        return int(cast(int, self._put_back(args=arguments)))
