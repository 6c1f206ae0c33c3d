"""Putting an event back into the queue that is at home nowhere, whoever has found it."""

from datetime import UTC, datetime
from typing import Final, cast
from zlib import crc32

from redis import Redis

from credhook.ledger import EVENT, Index, State, job_data, job_fields, job_id, lua

#: Milliseconds that an event may be between two homes: popped by RQ but not claimed yet, settled but not scheduled yet.
IN_TRANSIT: Final = 5_000
#: Attempts after which an event whose worker died under it has to wait, and for how long at most, in ms: first up to
#: FIRST_DELAY, then twice that, and so on. One that takes its worker along would otherwise meet the same others again.
PATIENT_FOR: Final = 2
FIRST_DELAY: Final = 5_000
LONGEST_DELAY: Final = 600_000

#: KEYS: event, open, leases, RQ's schedule, failed jobs, queue, job, started jobs, the job's executions, urgent,
#: popped jobs, dead, unreadable.
#: ARGV: webhook-id, job's id, data, in-transit ms, prefix of busy, attempts that are put back at once, chance from 0 to
#: 1, retention in s, the command that puts the job into the queue, then fields and values of the job. Returns 1 if the
#: event was put back, 0 if it is at home, or what of its record cannot be read. All that makes an event homeless is
#: decided here, by Redis's clock, but for the one thing that would cost a walk through the queue for each event:
#: whether the job stands in it.
PUT_BACK: Final = f"""{lua.NOW}{lua.ODD}{lua.LOCKS}{lua.READABLE}{lua.URGENT}
local id, job, data, transit, busy, patient, chance, retention, push = unpack(ARGV)
local moved = redis.call('ZSCORE', KEYS[2], id)
if not moved or now - moved < tonumber(transit) then return 0 end
local fields = unless_odd('HMGET', KEYS[1], 'state', 'type', 'resource', 'received', 'fence', 'attempts', 'due')
local state, type, resource, received, fence, attempts, due = unpack(fields or {{}})

local function leave()
    redis.call('DEL', KEYS[7])
    redis.call('ZREM', KEYS[3], id)
    redis.call('ZREM', KEYS[2], id)
end

if redis.call('EXISTS', KEYS[1]) == 0 then
    leave()
    return 0
end
local lease = redis.call('ZSCORE', KEYS[3], id)
if lease and tonumber(lease) > now then return 0 end
local wrong = fields and unreadable_part(id, state, type, resource, received, fence, attempts, due)
if wrong or not fields then
    wrong = wrong or 'no hash'
    redis.call('ZADD', KEYS[13], now, id)
    if fields then
        redis.call('HSET', KEYS[1], 'state', '{State.UNREADABLE}', 'error', 'Unreadable: ' .. wrong)
        redis.call('HDEL', KEYS[1], 'holder', 'fence', 'attempts', 'due')
    end
    redis.call('EXPIRE', KEYS[1], retention)
    leave()
    return wrong
end
if state ~= '{State.ACCEPTED}' and state ~= '{State.WAITING}' then  -- Its settlement was broken off.
    if redis.call('TTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], retention) end
    if state == '{State.DEAD}' or state == '{State.DATA_GONE}' then redis.call('ZADD', KEYS[12], 'NX', now, id) end
    leave()
    return 0
end
if due and due + transit > now then return 0 end
if lease and tonumber(attempts) > tonumber(patient) then
    local delay = math.min({LONGEST_DELAY}, {FIRST_DELAY} * 2 ^ (attempts - patient - 1))
    if now < lease + delay * chance then return 0 end
end
local holder = holder_of(busy .. resource)
if holder and holder ~= id then return 0 end
redis.call('ZADD', KEYS[2], now, id)
redis.call('ZREM', KEYS[3], id)
unless_odd('ZREM', KEYS[4], job)
unless_odd('ZREM', KEYS[5], job)
unless_odd('LREM', KEYS[11], 0, job)
for _, execution in ipairs(unless_odd('ZRANGE', KEYS[9], 0, -1) or {{}}) do
    unless_odd('ZREM', KEYS[8], job .. ':' .. execution)
    redis.call('DEL', 'rq:execution:' .. job .. ':' .. execution)
end
redis.call('DEL', KEYS[7], KEYS[9])
redis.call('HSET', KEYS[7], 'data', data, unpack(ARGV, 10))
unless_odd('SADD', 'rq:queues', KEYS[6])
redis.call(push, KEYS[6], job)
if is_urgent(type) then hint(KEYS[10], job) end
return 1
"""


class PutBack:
    """Puts back the events of one queue."""

    def __init__(self, redis: Redis, *, queue: str, retention: int) -> None:
        """Prepare.

        Args:
            redis: the ledger.
            queue: whose events.
            retention: seconds for which a record is kept that cannot be read.
        """
        self._index = Index(queue)
        self._retention = retention
        self._script = redis.register_script(PUT_BACK)

    def __call__(self, event_id: str, *, in_transit: int = IN_TRANSIT, first: bool = False) -> int | bytes:
        """Put one back: 1; 0 if it is at home, or has to wait; or what of its record cannot be read.

        Args:
            event_id: the event.
            in_transit: milliseconds that it may be between two homes.
            first: whether at the head of the queue.
        """
        index, job, name = self._index, job_id(event_id), event_id.encode(errors="surrogateescape")
        keys: list[str | bytes] = [
            EVENT.encode() + name,
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
            index.dead,
            index.unreadable,
        ]
        # The same for all rounds, another for each event: those that died together should not return together.
        chance = crc32(name) / 2**32
        arguments: list[str | int | float | bytes] = [
            name,
            job,
            job_data(event_id),
            in_transit,
            index.busy,
            PATIENT_FOR,
            chance,
            self._retention,
            "LPUSH" if first else "RPUSH",
        ]
        for field, value in job_fields(index.queue, datetime.now(UTC)).items():
            arguments += field, value
        return cast("int | bytes", self._script(keys=keys, args=arguments))
