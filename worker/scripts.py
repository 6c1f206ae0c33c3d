"""The scripts by which workers move events through the ledger, and jobs through RQ's lists beside it.

An event and its RQ job move in one step: there is no instant at which a job is in no list. RQ's records are written as
RQ writes them, so that `rq info` and its like show what is going on; tests/integration/test_rq_contract.py compares.

All scripts take the same KEYS, `keys(index)`; the keys of single events, jobs and resources are built from arguments: a
cluster, which would want them declared, is refused at start (receiver/ledger/health.py).
"""

from typing import Final

from receiver.ledger import (
    EVENT,
    HANDLER,
    JOB_FUNCTION,
    RESOURCE,
    SNAPSHOT,
    Index,
    State,
    lua,
)

#: Milliseconds by which RQ's scheduler, which counts whole seconds, may be early.
EARLY: Final = 2_000
#: Seconds after the last sign of life of a worker at which RQ's own tools count its jobs as abandoned. Later than the
#: reconciler, which knows more.
RQ_PATIENCE: Final = 120
#: Due retries that one script moves from RQ's schedule to its queue.
MOST_DUE: Final = 500
#: Seconds that the list of a resource's waiting events lives after the last one came: a hint, the events are open.
PARKED_LASTS: Final = 86_400
#: Seconds that the latest state of a resource is remembered. What comes later still is told by the details alone.
LATEST_LASTS: Final = 86_400


def keys(index: Index) -> list[str]:
    """KEYS of every script here."""
    return [
        index.open,
        index.leases,
        index.dead,
        index.jobs,
        index.scheduled,
        index.started,
        index.urgent,
        index.intermediate,
        index.busy,
        index.parked,
        index.refused,
    ]


_COMMON: Final = f"""{lua.NOW}{lua.URGENT}
local open, leases, dead, jobs, scheduled, started, urgent, intermediate, busy, parked, refused = unpack(KEYS)
local call = redis.call

-- The event of a job as we write it (ledger.job_data); nil for any other, be it RQ's rewriting of ours or a stranger's.
local function event_of(job)
    local data = call('HGET', 'rq:job:' .. job, 'data')
    if not data then return nil, nil end
    if string.find(job, '[^%w_-]') then return nil, data end  -- No job of ours has such an id.
    if string.sub(data, 1, 3) ~= '\\120\\1\\1' then return nil, data end
    local ok, content = pcall(cjson.decode, string.sub(data, 8, -5))
    if not ok or type(content) ~= 'table' or #content ~= 4 then return nil, data end
    local name, instance, arguments, named = unpack(content)
    if name ~= '{JOB_FUNCTION}' or instance ~= cjson.null or type(named) ~= 'table' or next(named) then
        return nil, data
    end
    if type(arguments) ~= 'table' or #arguments ~= 1 or type(arguments[1]) ~= 'string' then return nil, data end
    return arguments[1], data
end

-- RQ's record of who works on a job, as alive just now.
local function beat(job, execution)
    local until_then = now / 1000 + {RQ_PATIENCE}
    call('EXPIRE', 'rq:execution:' .. job .. ':' .. execution, {RQ_PATIENCE})
    call('ZADD', 'rq:executions:' .. job, until_then, execution)
    call('EXPIRE', 'rq:executions:' .. job, {RQ_PATIENCE})
    call('ZADD', started, until_then, job .. ':' .. execution)
end

-- Take the event, unless somebody else has it or it wants nothing: what a worker needs to know of it, or why not.
-- `who`: lease in ms; and for a worker of ours its name, its token, and the time as RQ writes it.
local function claim(id, job, who)
    local key = '{EVENT}' .. id
    local state, type, resource, received, fence, attempts, due =
        unpack(call('HMGET', key, 'state', 'type', 'resource', 'received', 'fence', 'attempts', 'due'))
    if not state then return 'missing' end
    if state ~= '{State.ACCEPTED}' and state ~= '{State.WAITING}' then return 'settled' end
    local lease = fence and call('ZSCORE', leases, id)
    if lease and tonumber(lease) > now then return 'held' end
    if state == '{State.WAITING}' and due and tonumber(due) > now + {EARLY} then return 'early' end
    if not call('SET', busy .. resource, id, 'PX', who.lease, 'NX') then
        if call('GET', busy .. resource) ~= id then
            call('ZADD', parked .. resource, received, job)
            call('EXPIRE', parked .. resource, {PARKED_LASTS})
            call('ZADD', open, now, id)
            return 'parked'
        end
        call('PEXPIRE', busy .. resource, who.lease)
    end
    call('ZADD', leases, now + who.lease, id)
    local ended = fence and call('HGETALL', key) or {{}}
    -- From the clock, so that no later event of the same id, after an erasure, meets the token of an earlier one.
    fence, attempts = (tonumber(fence) or now) + 1, (tonumber(attempts) or 0) + 1
    call('HSET', key, 'fence', fence, 'attempts', attempts)
    if state == '{State.WAITING}' then
        call('HSET', key, 'state', '{State.ACCEPTED}')
        call('HDEL', key, 'due')
    end
    local execution = ''
    if who.name then
        execution = string.format('%s-%.0f', who.token, fence)
        local seconds, record = now / 1000, 'rq:execution:' .. job .. ':' .. execution
        call('HSET', 'rq:job:' .. job, 'status', 'started', 'started_at', who.time, 'last_heartbeat', who.time,
             'worker_name', who.name)
        call('HSET', record, 'id', execution, 'created_at', seconds, 'last_heartbeat', seconds, 'worker_name', who.name)
        beat(job, execution)
    end
    local latest = call('GET', '{RESOURCE}' .. resource)
    return {{id, job, execution, now, type, resource, received, fence, attempts, ended, latest}}
end

-- Add the claim to the others; a job whose event wants nothing any more goes.
local function claim_into(claims, id, job, who)
    local got = claim(id, job, who)
    if type(got) == 'table' then
        claims[#claims + 1] = got
    elseif got == 'missing' or got == 'settled' then
        call('DEL', 'rq:job:' .. job)
    end
end
"""

#: For stock RQ workers, which have popped the job themselves. ARGV: webhook-id, job, lease in ms.
CLAIM: Final = f"""{_COMMON}
return claim(ARGV[1], ARGV[2], {{lease = ARGV[3]}})
"""

#: Take events from the queue, the urgent ones first up to their share. ARGV: how many, how many of them urgent before
#: the others, lease in ms, worker's name, its token, the time as RQ writes it. Returns the claims; jobs that are not as
#: we write them, with their data, for Python to read; and ms until the next retry is due, or -1.
TAKE: Final = f"""{_COMMON}
local wanted, share = tonumber(ARGV[1]), tonumber(ARGV[2])
local who = {{lease = ARGV[3], name = ARGV[4], token = ARGV[5], time = ARGV[6]}}
for _, job in ipairs(call('ZRANGEBYSCORE', scheduled, '-inf', now / 1000, 'LIMIT', 0, {MOST_DUE})) do
    call('ZREM', scheduled, job)
    if call('EXISTS', 'rq:job:' .. job) == 1 then
        call('HSET', 'rq:job:' .. job, 'status', 'queued')
        call('RPUSH', jobs, job)
        local id = event_of(job)
        if id then
            call('ZADD', open, 'XX', now, id)
            if is_urgent(call('HGET', '{EVENT}' .. id, 'type')) then
                hint(urgent, job)
            end
        end
    end
end
local claims, odd = {{}}, {{}}
local function take(job, is_hint)
    local id, data = event_of(job)
    if not data then return end  -- Settled by way of a hint, or lost: the reconciler sees to it.
    if id then
        claim_into(claims, id, job, who)
    elseif not is_hint then
        call('LPUSH', intermediate, job)
        odd[#odd + 1] = job
        odd[#odd + 1] = data
    end
end
local function take_up_to(number, list)
    local left = wanted * 10 + 100
    while #claims < number and left > 0 do
        local job = call('LPOP', list)
        if not job then return end
        take(job, list == urgent)
        left = left - 1
    end
end
take_up_to(share, urgent)
take_up_to(wanted, jobs)
take_up_to(wanted, urgent)
local due = call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')
return {{claims, odd, due[2] and math.max(0, math.ceil(due[2] * 1000 - now)) or -1}}
"""

#: Take the events of jobs that Python has read. ARGV: lease in ms, worker's name, its token, the time as RQ writes it,
#: then job and webhook-id of each.
TAKE_READ: Final = f"""{_COMMON}
local who = {{lease = ARGV[1], name = ARGV[2], token = ARGV[3], time = ARGV[4]}}
local claims = {{}}
for i = 5, #ARGV, 2 do
    local job, id = ARGV[i], ARGV[i + 1]
    call('LREM', intermediate, 0, job)
    claim_into(claims, id, job, who)
end
return claims
"""

#: Take jobs that are none of ours out of RQ's reach. ARGV: seconds that they are kept, then each job.
REFUSE: Final = f"""{_COMMON}
for i = 2, #ARGV do
    local job = ARGV[i]
    call('LREM', intermediate, 0, job)
    call('LREM', jobs, 0, job)
    call('ZREM', scheduled, job)
    if call('EXISTS', 'rq:job:' .. job) == 1 then
        call('RENAME', 'rq:job:' .. job, refused .. job)
        call('EXPIRE', refused .. job, ARGV[1])
    end
end
"""

#: Write down what has happened, in the order in which it did. ARGV: retention in s, and one JSON array for each:
#:
#:     ["record", webhook-id, handler, how]               → 1
#:     ["ended", webhook-id, handler]                      → how, or nothing
#:     ["renew", webhook-id, fence, job, execution, lease] → whether the claim still stands
#:     ["settle", webhook-id, fence, job, execution, what] → whether it was ours to settle, and the claim that follows
#:
#: `what`: state; error; wait, in ms; spend, whether the attempt counts; records, handler → how; sealed, whether
#: presented data may have been kept; rank and updated, the resource's state that handlers have seen; who, for whom to
#: claim the resource's next event. An event that was erased meanwhile stays erased.
WRITE: Final = f"""{_COMMON}
local retention = ARGV[1]
local write = {{}}

function write.record(id, handler, how)
    if call('EXISTS', '{EVENT}' .. id) == 1 then call('HSET', '{EVENT}' .. id, '{HANDLER}' .. handler, how) end
    return 1
end

function write.ended(id, handler)
    return call('HGET', '{EVENT}' .. id, '{HANDLER}' .. handler)
end

function write.renew(id, fence, job, execution, lease)
    local held, resource = unpack(call('HMGET', '{EVENT}' .. id, 'fence', 'resource'))
    if held ~= fence then return 0 end
    local holder = call('GET', busy .. resource)
    if holder and holder ~= id then return 0 end  -- Ours had lapsed, and the resource's next event has begun.
    call('SET', busy .. resource, id, 'PX', lease)
    call('ZADD', leases, now + lease, id)
    local record = 'rq:execution:' .. job .. ':' .. execution
    if execution ~= '' and call('EXISTS', record) == 1 then
        call('HSET', record, 'last_heartbeat', now / 1000)
        beat(job, execution)
    end
    return 1
end

-- Let the resource's next event be worked on: claimed at once for `who`, or else put before the others in the queue.
local function let_next(resource, who)
    while call('EXISTS', busy .. resource) == 0 do  -- A claim that had lapsed may be settled after the next has begun.
        local job = call('ZPOPMIN', parked .. resource)[1]
        if not job then break end
        local id, data = event_of(job)
        if id and who then
            local got = claim(id, job, who)
            if type(got) == 'table' then return got end
        elseif data then
            if id then call('ZADD', open, 'XX', now, id) end
            call('LPUSH', jobs, job)
            break
        end
    end
    return false
end

local function remember(resource, rank, updated)
    local seen = call('GET', '{RESOURCE}' .. resource) or '0:0'
    local old_rank, old_updated = string.match(seen, '^(%d+):(%d+)$')
    rank, updated = math.max(rank, old_rank or 0), math.max(updated, old_updated or 0)
    call('SET', '{RESOURCE}' .. resource, string.format('%d:%.0f', rank, updated), 'EX', {LATEST_LASTS})
end

local function set_status(job, status)
    if call('EXISTS', 'rq:job:' .. job) == 1 then
        call('HSET', 'rq:job:' .. job, 'status', status, 'worker_name', '')
    end
end

function write.settle(id, fence, job, execution, what)
    local key = '{EVENT}' .. id
    local held, state, resource, attempts = unpack(call('HMGET', key, 'fence', 'state', 'resource', 'attempts'))
    if execution ~= '' then call('ZREM', started, job .. ':' .. execution) end
    local gone = {{'rq:execution:' .. job .. ':' .. execution, 'rq:executions:' .. job}}
    if held ~= fence then
        for handler, how in pairs(what.records) do write.record(id, handler, how) end
        call('DEL', unpack(gone))
        -- In that state, and nobody's since: it is written already, and the reply was lost.
        local next_fence = string.format('%.0f', fence + 1)
        local nobodys = not held or (held == next_fence and not call('ZSCORE', leases, id))
        return {{nobodys and state == what.state and 1 or 0, false}}
    end
    local set, unset = {{'state', what.state}}, {{'error'}}
    for handler, how in pairs(what.records) do
        set[#set + 1] = '{HANDLER}' .. handler
        set[#set + 1] = how
    end
    if what.error ~= '' then
        set[#set + 1], set[#set + 2] = 'error', what.error
        unset[1] = nil
    end
    if not what.spend then
        attempts = attempts - 1
        set[#set + 1], set[#set + 2] = 'attempts', attempts
    end
    if call('GET', busy .. resource) == id then gone[#gone + 1] = busy .. resource end
    call('ZREM', leases, id)
    if what.rank then remember(resource, what.rank, what.updated) end
    if what.state == '{State.WAITING}' or what.state == '{State.ACCEPTED}' then
        set[#set + 1], set[#set + 2] = 'fence', string.format('%.0f', fence + 1)  -- No late renewal brings it back.
    end
    if what.state == '{State.WAITING}' then
        set[#set + 1], set[#set + 2] = 'due', now + what.wait
        call('ZADD', open, now, id)
        if execution ~= '' then
            call('ZADD', scheduled, (now + what.wait) / 1000, job)
            set_status(job, 'scheduled')
        end
    elseif what.state == '{State.ACCEPTED}' then  -- Handed back: it was there first.
        call('ZADD', open, now, id)
        call('LPUSH', jobs, job)
        set_status(job, 'queued')
    else
        set[#set + 1], set[#set + 2] = 'settled', now
        unset[#unset + 1] = 'fence'
        if tonumber(attempts) == 1 then unset[#unset + 1] = 'attempts' end
        call('ZREM', open, id)
        call('EXPIRE', key, retention)
        if what.state == '{State.DONE}' then
            unset[#unset + 1] = 'seen'
            if what.sealed then gone[#gone + 1] = '{SNAPSHOT}' .. id end
        else
            call('ZADD', dead, now, id)
        end
        if execution ~= '' then gone[#gone + 1] = 'rq:job:' .. job end
    end
    call('HSET', key, unpack(set))
    if #unset > 0 then call('HDEL', key, unpack(unset)) end
    call('DEL', unpack(gone))
    return {{1, let_next(resource, what.who)}}
end

local replies = {{}}
for i = 2, #ARGV do
    local operation = cjson.decode(ARGV[i])
    replies[#replies + 1] = write[operation[1]](unpack(operation, 2))
end
return replies
"""
