"""The scripts by which workers move events through the ledger, and jobs through RQ's lists beside it.

An event and its RQ job move in one step: there is no instant at which a job is in no list. RQ's records are written as
RQ writes them, so that `rq info` and its like show what is going on; tests/integration/test_rq_contract.py compares.

All scripts take the same KEYS, `keys(index)`; the keys of single events, jobs and resources are built from arguments: a
cluster, which would want them declared, is refused at start (credhook/redis/health.py).
"""

from typing import Final

from credhook.ledger import EVENT, FAILURE_TTL, JOB_FUNCTION, RESOURCE, Index, State, lua

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
#: Deaths of processes in which an event was one of several under way, after which it is worked on alone.
COMMON_DEATHS: Final = 2
#: Suspects that one script looks at, to find one that can be worked on.
MOST_SUSPECTS: Final = 100
#: Bytes of a job's data, and of its name, beyond which it is none of ours. Ours have 400 and 258 at most.
LONGEST_JOB: Final = 8_192
LONGEST_NAME: Final = 512


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
        index.solitary,
    ]


COMMON: Final = f"""{lua.NOW}{lua.ODD}{lua.LOCKS}{lua.READABLE}{lua.URGENT}
local open, leases, dead, jobs, scheduled, started, urgent, intermediate, busy, parked, refused, solitary = unpack(KEYS)
local call = redis.call
local oversized = false  -- Whether a job was met that is larger than any of ours.

-- The event of a job as we write it (ledger.job_data); nil for any other, be it RQ's rewriting of ours or a stranger's.
local function event_of(job)
    local data = unless_odd('HGET', 'rq:job:' .. job, 'data')
    if not data then return nil, nil end
    if #data > {LONGEST_JOB} then  -- None of ours, and each reading of it is a copy.
        oversized = true
        return nil, ''
    end
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

-- RQ's record of who works on a job, as alive just now. Only RQ's tools read it.
local function beat(job, execution)
    local until_then = now / 1000 + {RQ_PATIENCE}
    unless_odd('EXPIRE', 'rq:execution:' .. job .. ':' .. execution, {RQ_PATIENCE})
    unless_odd('ZADD', 'rq:executions:' .. job, until_then, execution)
    unless_odd('EXPIRE', 'rq:executions:' .. job, {RQ_PATIENCE})
    unless_odd('ZADD', started, until_then, job .. ':' .. execution)
end

-- The latest state of the resource that handlers have seen, its rank and when it was updated; nil if none is known.
local function latest_of(resource)
    local rank, updated = string.match(unless_odd('GET', '{RESOURCE}' .. resource) or '', '^(%d%d?):(%d+)$')
    if rank and is_count(updated) then return rank, updated end
    return nil
end

-- Take the event, unless somebody else has it or it wants nothing: what a worker needs to know of it, or why not.
-- `who`: lease in ms; for a worker of ours its name, its token, and the time as RQ writes it; `alone`, whether the
-- event would be the only one that its process has under way.
local function claim(id, job, who)
    local key = '{EVENT}' .. id
    local fields = unless_odd('HMGET', key, 'state', 'type', 'resource', 'received', 'fence', 'attempts', 'due',
                              'deaths', 'killed')
    if not fields then return 'unreadable' end
    local state, type, resource, received, fence, attempts, due, deaths, killed = unpack(fields)
    if not (state or type) then return call('EXISTS', key) == 1 and 'unreadable' or 'missing' end
    if unreadable_part(id, state, type, resource, received, fence, attempts, due) then return 'unreadable' end
    if state ~= '{State.ACCEPTED}' and state ~= '{State.WAITING}' then return 'settled' end
    local lease = fence and call('ZSCORE', leases, id)
    if lease and tonumber(lease) > now then return 'held' end
    if state == '{State.WAITING}' and due and tonumber(due) > now + {EARLY} then return 'early' end
    received, killed = received or string.format('%.0f', now), is_count(killed) and tonumber(killed) or 0
    local suspect = killed > 0 or is_count(deaths) and tonumber(deaths) >= {COMMON_DEATHS}
    if suspect and not who.alone then
        call('ZADD', solitary, received, job)
        call('EXPIRE', solitary, {PARKED_LASTS})
        return 'suspect'
    end
    if not call('SET', busy .. resource, id, 'PX', who.lease, 'NX') then
        local holder = holder_of(busy .. resource)
        if holder and holder ~= id then
            if unless_odd('ZADD', parked .. resource, received, job) then
                call('EXPIRE', parked .. resource, {PARKED_LASTS})
            end
            call('ZADD', open, now, id)
            return 'parked'
        end
        call('SET', busy .. resource, id, 'PX', who.lease)
    end
    call('ZADD', leases, now + who.lease, id)
    local ended = fence and call('HGETALL', key) or {{}}
    -- From the clock, so that no later event of the same id, after an erasure, meets the token of an earlier one.
    fence, attempts = (tonumber(fence) or now) + 1, (tonumber(attempts) or 0) + 1
    call('HSET', key, 'fence', fence, 'attempts', attempts, 'holder', who.token or '')
    if state == '{State.WAITING}' then
        call('HSET', key, 'state', '{State.ACCEPTED}')
        call('HDEL', key, 'due')
    end
    local execution = ''
    if who.name then
        execution = string.format('%s-%.0f', who.token, fence)
        local seconds, record = now / 1000, 'rq:execution:' .. job .. ':' .. execution
        unless_odd('HSET', 'rq:job:' .. job, 'status', 'started', 'started_at', who.time, 'last_heartbeat', who.time,
                   'worker_name', who.name)
        unless_odd('HSET', record, 'id', execution, 'created_at', seconds, 'last_heartbeat', seconds,
                   'worker_name', who.name)
        beat(job, execution)
    end
    local rank, updated = latest_of(resource)
    local latest = rank and rank .. ':' .. updated
    return {{id, job, execution, now, type, resource, received, fence, attempts, ended, latest or false, killed,
            suspect and 1 or 0}}
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

#: For stock RQ workers, which have popped the job themselves and work on one at a time. ARGV: webhook-id, job, lease in
#: ms.
CLAIM: Final = f"""{COMMON}
return claim(ARGV[1], ARGV[2], {{lease = ARGV[3], alone = true}})
"""

#: Take events from the queue, the urgent ones first up to their share. ARGV: how many, how many of them urgent before
#: the others, whether the process has nothing under way, lease in ms, worker's name, its token, the time as RQ writes
#: it. Returns the claims; jobs that are not as we write them, with their data, for Python to read; ms until the next
#: retry is due, or -1; and whether there are suspects, which only a process that has nothing under way may take.
#:
#: Such a process is given one of those, alone, before any other.
TAKE: Final = f"""{COMMON}
local wanted, share, idle = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local who = {{lease = ARGV[4], name = ARGV[5], token = ARGV[6], time = ARGV[7]}}
for _, job in ipairs(unless_odd('ZRANGEBYSCORE', scheduled, '-inf', now / 1000, 'LIMIT', 0, {MOST_DUE}) or {{}}) do
    call('ZREM', scheduled, job)
    local id, data = event_of(job)
    if data then
        call('HSET', 'rq:job:' .. job, 'status', 'queued')
        call('RPUSH', jobs, job)
        if id then
            call('ZADD', open, 'XX', now, id)
            if is_urgent(unless_odd('HGET', '{EVENT}' .. id, 'type')) then
                hint(urgent, job)
            end
        end
    end
end
local claims, odd = {{}}, {{}}
-- A job with a name that is too long to be handed about; the beginning of it, for the log.
local function set_aside(job, digest)
    if call('EXISTS', 'rq:job:' .. job) == 1 then
        call('RENAME', 'rq:job:' .. job, refused .. digest)
        call('EXPIRE', refused .. digest, {FAILURE_TTL})
    end
    return string.sub(job, 1, 32)
end
local function take(job, is_hint)
    local id, data = event_of(job)
    if not data then return end  -- Settled by way of a hint, or lost: the reconciler sees to it.
    if id then
        claim_into(claims, id, job, who)
    elseif not is_hint then
        if #job > {LONGEST_NAME} then
            job = set_aside(job, redis.sha1hex(job))
        else
            unless_odd('LPUSH', intermediate, job)
        end
        odd[#odd + 1] = job
        odd[#odd + 1] = data
    end
end
local function take_up_to(number, list)
    local left = wanted * 10 + 100
    while #claims < number and left > 0 and not oversized do
        local job = unless_odd('LPOP', list)
        if not job then return end
        take(job, list == urgent)
        left = left - 1
    end
end
local function take_suspect()
    who.alone = true
    for _ = 1, {MOST_SUSPECTS} do
        local job = #claims == 0 and unless_odd('ZPOPMIN', solitary)
        if not (job and job[1]) then break end
        take(job[1], true)
    end
    who.alone = false
end
if idle then take_suspect() end
if #claims == 0 then
    take_up_to(share, urgent)
    take_up_to(wanted, jobs)
    take_up_to(wanted, urgent)
end
local due = unless_odd('ZRANGE', scheduled, 0, 0, 'WITHSCORES') or {{}}
return {{claims, odd, due[2] and math.max(0, math.ceil(due[2] * 1000 - now)) or -1,
        (unless_odd('ZCARD', solitary) or 0) > 0 and 1 or 0}}
"""

#: Take the events of jobs that Python has read. ARGV: lease in ms, worker's name, its token, the time as RQ writes it,
#: then job and webhook-id of each.
TAKE_READ: Final = f"""{COMMON}
local who = {{lease = ARGV[1], name = ARGV[2], token = ARGV[3], time = ARGV[4]}}
local claims = {{}}
for i = 5, #ARGV, 2 do
    local job, id = ARGV[i], ARGV[i + 1]
    unless_odd('LREM', intermediate, 0, job)
    claim_into(claims, id, job, who)
end
return claims
"""

#: Take jobs that are none of ours, and were popped, out of RQ's reach. ARGV: seconds that they are kept, then each job.
#: Where the queue names one once more, nothing is found: to look for it there would take a walk through the whole of it
#: for each, and three hundred thousand of them kept Redis busy for hours.
REFUSE: Final = f"""{COMMON}
for i = 2, #ARGV do
    local job = ARGV[i]
    if call('EXISTS', 'rq:job:' .. job) == 1 then
        call('RENAME', 'rq:job:' .. job, refused .. job)
        call('EXPIRE', refused .. job, ARGV[1])
    end
    unless_odd('LREM', intermediate, 1, job)
end
"""
