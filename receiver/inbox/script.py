"""The script that accepts deliveries: dedupe, ledger record, indexes and RQ job of a whole group in one atomic step."""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import Enum
from hashlib import sha1
from typing import Final, NamedTuple

from credhook import ledger
from credhook.events import Event
from credhook.ledger import lua
from credhook.receiver.inbox.line import packed
from credhook.redis.connection import REDIS_TIMEOUT

# The events' own keys are built from the arguments: a cluster, which would want them declared, is refused (health.py).
# The fields that all jobs of a group share are written once and copied: it halves what goes into the append-only file.
# The records come last: whichever command fails, an event without a record is accepted when it is sent again.
# KEYS: open, quarantined, RQ's queue, the jobs' template, urgent. ARGV: retention in s, number of job fields, fields
# and values, five per event.
ACCEPT: Final = f"""{lua.NOW}{lua.ODD}{lua.URGENT}
local retention, fields = ARGV[1], tonumber(ARGV[2])
local first = 3 + 2 * fields
local outcomes, fresh, records, moved, jobs, urgent = {{}}, {{}}, {{}}, {{}}, {{}}, {{}}

local function keep_conflict(id, type, resource)
    local key = '{ledger.CONFLICT}' .. id
    local kept = unless_odd('HLEN', key)
    if kept and kept < {ledger.MOST_CONFLICTS} then
        redis.call('HSETNX', key, type .. ' ' .. resource, now)
        redis.call('EXPIRE', key, retention)
    end
end

for i = first, #ARGV, 5 do
    local id, type, resource, job, data = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    local key = '{ledger.EVENT}' .. id
    local seen = fresh[id] or unless_odd('HMGET', key, 'type', 'resource')
    local outcome
    if not seen then
        outcome = 'unreadable'
    elseif seen[1] or seen[2] then
        outcome = 'duplicate'
        if seen[1] ~= type or seen[2] ~= resource then
            outcome = 'conflict'
            keep_conflict(id, type, resource)
        end
    else
        fresh[id] = {{type, resource}}
        local state = '{ledger.State.ACCEPTED}'
        if job == '' then
            outcome, state = 'quarantined', '{ledger.State.QUARANTINED}'
            redis.call('ZADD', KEYS[2], now, id)
        else
            outcome = 'accepted'
            if #jobs == 0 and not unless_odd('HSET', KEYS[4], unpack(ARGV, 3, first - 1)) then
                redis.call('DEL', KEYS[4])  -- It is for the length of this script, so nothing of ours.
                redis.call('HSET', KEYS[4], unpack(ARGV, 3, first - 1))
            end
            redis.call('COPY', KEYS[4], 'rq:job:' .. job, 'REPLACE')
            redis.call('HSET', 'rq:job:' .. job, 'data', data)
            jobs[#jobs + 1] = job
            moved[#moved + 1] = now
            moved[#moved + 1] = id
            if is_urgent(type) then urgent[#urgent + 1] = job end
        end
        records[#records + 1] = {{key, 'state', state, 'type', type, 'resource', resource, 'received', now}}
    end
    outcomes[#outcomes + 1] = outcome
end
if #jobs > 0 then
    redis.call('DEL', KEYS[4])
    unless_odd('SADD', 'rq:queues', KEYS[3])  -- For RQ's tools alone.
    redis.call('ZADD', KEYS[1], unpack(moved))
    redis.call('RPUSH', KEYS[3], unpack(jobs))
end
if #urgent > 0 then hint(KEYS[5], unpack(urgent)) end
for _, record in ipairs(records) do
    local key = record[1]
    if record[3] == '{ledger.State.ACCEPTED}' then
        redis.call('HSET', unpack(record))
    else  -- Written elsewhere first, so that it never stands there without its expiry.
        record[1] = KEYS[4] .. ':record'
        redis.call('DEL', record[1])
        redis.call('HSET', unpack(record))
        redis.call('EXPIRE', record[1], retention)
        redis.call('RENAME', record[1], key)
    end
end
return outcomes
"""
_SHA: Final = sha1(ACCEPT.encode(), usedforsecurity=False).hexdigest()


#: Gives Redis the script, which it keeps until it restarts.
LOAD: Final = packed("SCRIPT", "LOAD", ACCEPT)
#: Replies to `synced`.
SYNCED_REPLIES: Final = 2


def synced(queue: str) -> bytes:
    """Commands that ask whether all that was written is on the disk; the last reply begins with 1 if it is.

    WAITAOF speaks of what its own connection has written, and a group of duplicates writes nothing: what they repeat
    may have been written over a connection that broke before the disk had it. Therefore something is written.
    """
    patience = int(REDIS_TIMEOUT * 900)  # A little less than we would wait for an answer.
    return packed("SET", ledger.Index(queue).synced, 1, "EX", 60) + packed("WAITAOF", 1, 0, patience)


class Outcome(Enum):
    """What became of a delivery; each but the last is acknowledged. The values are the script's replies."""

    ACCEPTED = "accepted"
    #: Seen before: nothing was created.
    DUPLICATE = "duplicate"
    #: Seen before, but as another type or for another resource: kept aside.
    CONFLICT = "conflict"
    #: Of a type that we do not know yet: kept for replay.
    QUARANTINED = "quarantined"
    #: Not acknowledged: somebody else has written to where its record would be.
    UNREADABLE = "unreadable"


#: As the script names them.
OUTCOMES: Final = {outcome.value.encode(): outcome for outcome in Outcome}


class Delivery(NamedTuple):
    """An event that was authenticated, and the webhook-id that it came under."""

    id: str
    event: Event


def accept(group: Iterable[Delivery], *, queue: str, retention: int) -> bytes:
    """The command that runs the script for a group; its reply is an outcome for each.

    It is packed by hiredis, in C: redis-py's pipeline takes 5 microseconds more for each event, measured, a tenth of
    what a delivery costs.
    """
    index = ledger.Index(queue)
    fields = ledger.job_fields(queue, datetime.now(UTC))
    command: list[str | int | bytes] = ["EVALSHA", _SHA, 5, index.open, index.quarantined, index.jobs]
    command += index.template, index.urgent, retention, len(fields)
    for name, value in fields.items():
        command += name, value
    for id_, event in group:
        job = (ledger.job_id(id_), ledger.job_data(id_)) if event.known else ("", b"")
        command += id_, event.type, event.resource_id, *job
    return packed(*command)
