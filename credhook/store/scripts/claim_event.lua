-- How a worker gets the right to work on an event.
--
-- Events are claimed one by one and held together: a claim takes effect with `hold`. A `worker` is a table: `lease` in
-- ms; `alone`, true if it has nothing else under way; and for a worker of ours `name`. RQ itself lists the
-- started jobs of its own workers.
--
-- A claim is a list:
--   1 webhook-id  2 job  3 now, ms  4 type  5 resource  6 received, ms  7 fence  8 lapses  9 latest state of the
--   resource that handlers have seen, or 0  10 deaths of workers that held only this event  11 1 for a poison
--   candidate  12 trace or nil  13 the record's fields and values, if the event was held before

--! include keys.lua
--! include lock.lua
--! include events_of_resource.lua
--! include expiring.lua

local EARLY = 2000            -- Ms that RQ's scheduler, which counts whole seconds, may be early.
local BLOCKED_LASTS = 86400000  -- Ms that lists of blocked and isolated jobs live. They are hints: the events are open.
local COMMON_DEATHS = 2       -- Deaths of workers that held several events, after which each of these is isolated.

-- The events that this script has claimed, by resource.
local claimed = {}

-- Return the claim, or one word that says why there is none.
local function claim(id, job, worker)
    local record, fields = record_of(id)
    if not record then return fields and 'unreadable' or 'missing' end
    local state, resource, received, fence, lapses =
        record.state, record.resource, record.received, record.fence, record.lapses
    if state ~= $ACCEPTED and state ~= $WAITING then return 'settled' end
    local locked_by = lock_of(resource)
    local holder = claimed[resource] or locked_by and holder_of(resource)
    local is_held = claimed[resource] == id or (fence or locked_by == id) and has_lease(id)
    if is_held then return 'held' end
    if state == $WAITING and record.due and tonumber(record.due) > now + EARLY then return 'early' end
    local killed = tonumber(record.killed or 0)
    local poison_candidate = killed > 0 or tonumber(record.deaths or 0) >= COMMON_DEATHS
    if poison_candidate and not worker.alone then
        write_expiring(isolated, BLOCKED_LASTS, 'ZADD', received, job)
        return 'poison_candidate'
    end
    if holder and holder ~= id then
        write_expiring(blocked .. resource, BLOCKED_LASTS, 'ZADD', received, job)
        redis.call('ZADD', delayed, 'GT', received, id)
        redis.call('ZADD', open, now, id)
        return 'blocked'
    end
    if locked_by == id then
        fence, lapses = last_claim(id, record)
    elseif locked_by then
        remember(locked_by)
    end
    -- A new event has the required fields and some of these. To look at the names of all fields would cost 4 % of a take.
    local new = #REQUIRED + (record.place and 1 or 0) + (record.backfilled and 1 or 0) + (record[$TRACE] and 1 or 0)
    local was_held = fence ~= nil or #fields > 2 * new
    -- Fences follow the clock: if an event is erased and its id comes again, they do not repeat the earlier ones. They are
    -- higher than the time of receipt, also if the clock went back since: see write.record.
    fence = string.format('%.0f', math.max(now, received + 1, (fence or 0) + 1))
    if state == $WAITING then redis.call('HSET', EVENT .. id, 'state', $ACCEPTED) end
    if record.due or record.holder then redis.call('HDEL', EVENT .. id, 'due', 'holder') end
    claimed[resource] = id
    return {id, job, now, record.type, resource, received, fence, tonumber(lapses or 0),
            latest_of(resource, record.latest), killed,
            poison_candidate and 1 or 0, record[$TRACE] or false, was_held and fields or {}}
end

-- Give each of the claims its lock, its lease and its entry among RQ's started jobs.
local function hold(claims, worker)
    if #claims == 0 then return end
    local ends, rq_ends = string.format('%.0f', now + worker.lease), string.format('%.0f', now / 1000 + $RQ_STARTED_SECONDS)
    local held, locked, executions = {}, {}, {}
    for place, got in ipairs(claims) do
        held[2 * place - 1], held[2 * place] = ends, got[1]
        locked[2 * place - 1] = got[5]
        locked[2 * place] = got[1] .. ' ' .. got[7] .. ' ' .. (got[8] + 1) .. ' ' .. (worker.name or '')
        executions[2 * place - 1], executions[2 * place] = rq_ends, got[2] .. ':' .. got[7]
    end
    redis.call('HSET', locks, unpack(locked))
    redis.call('ZADD', leases, unpack(held))
    if worker.name then redis.call('ZADD', started, unpack(executions)) end
end
