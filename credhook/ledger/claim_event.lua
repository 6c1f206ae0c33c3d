-- How a worker gets the right to work on an event.
--
-- Defines: claim, claim_into.

--! include credhook.ledger/heartbeat.lua
--! include credhook.ledger/latest_state.lua
--! include credhook.ledger/lock_holder.lua
--! include credhook.ledger/now.lua
--! include credhook.ledger/readable.lua
--! include credhook.ledger/unless_odd.lua
--! include credhook.ledger/worker_keys.lua

-- Milliseconds by which RQ's scheduler, which counts whole seconds, may be early.
local EARLY = 2000
-- Seconds that a list of parked or solitary jobs lives after the last was added. It is a hint: their events are open.
local PARKED_LASTS = 86400
-- Deaths of processes in which an event was one of several under way, after which it is worked on alone.
local COMMON_DEATHS = 2

-- Claim the event for `who`. Returns what a worker has to know of it, or the reason why it cannot be claimed.
--
-- Fields of `who`: `lease`, in ms; `alone`, whether the process would have nothing else under way; for a worker of ours
-- also `name`, `token`, and `time`, the current time as RQ writes it. For its own workers RQ keeps the job's records.
local function claim(id, job, who)
    local key = $EVENT .. id
    local fields = unless_odd('HMGET', key, 'state', 'type', 'resource', 'received', 'fence', 'attempts', 'due',
                              'deaths', 'killed', $TRACE)
    if not fields then return 'unreadable' end
    local state, type, resource, received, fence, attempts, due, deaths, killed, trace = unpack(fields)
    if not (state or type) then return redis.call('EXISTS', key) == 1 and 'unreadable' or 'missing' end
    if unreadable_part(id, state, type, resource, received, fence, attempts, due) then return 'unreadable' end
    if state ~= $ACCEPTED and state ~= $WAITING then return 'settled' end
    local lease = fence and redis.call('ZSCORE', leases, id)
    if lease and tonumber(lease) > now then return 'held' end
    if state == $WAITING and due and tonumber(due) > now + EARLY then return 'early' end
    received, killed = received or string.format('%.0f', now), is_count(killed) and tonumber(killed) or 0
    local suspect = killed > 0 or is_count(deaths) and tonumber(deaths) >= COMMON_DEATHS
    if suspect and not who.alone then
        redis.call('ZADD', solitary, received, job)
        redis.call('EXPIRE', solitary, PARKED_LASTS)
        return 'suspect'
    end
    if not redis.call('SET', busy .. resource, id, 'PX', who.lease, 'NX') then
        local holder = holder_of(busy .. resource)
        if holder and holder ~= id then
            if unless_odd('ZADD', parked .. resource, received, job) then
                redis.call('EXPIRE', parked .. resource, PARKED_LASTS)
            end
            redis.call('ZADD', open, now, id)
            return 'parked'
        end
        redis.call('SET', busy .. resource, id, 'PX', who.lease)
    end
    redis.call('ZADD', leases, now + who.lease, id)
    local ended = fence and redis.call('HGETALL', key) or {}
    -- Fences start at the clock: if an event is erased and its id comes again, they do not repeat the earlier ones.
    fence, attempts = (tonumber(fence) or now) + 1, (tonumber(attempts) or 0) + 1
    redis.call('HSET', key, 'fence', fence, 'attempts', attempts, 'holder', who.token or '')
    if state == $WAITING then
        redis.call('HSET', key, 'state', $ACCEPTED)
        redis.call('HDEL', key, 'due')
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
    return {id, job, execution, now, type, resource, received, fence, attempts, ended, latest or false, killed,
            suspect and 1 or 0, trace or nil}
end

-- Claim the event and add the claim to `claims`. The job of an event that is missing or settled is deleted.
local function claim_into(claims, id, job, who)
    local got = claim(id, job, who)
    if type(got) == 'table' then
        claims[#claims + 1] = got
    elseif got == 'missing' or got == 'settled' then
        redis.call('DEL', 'rq:job:' .. job)
    end
end
