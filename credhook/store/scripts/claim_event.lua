-- How a worker gets the right to work on an event.
--
-- Claims are made one by one and held together: what has been claimed is nobody's until `hold`. Each is a flat list,
-- and so are the replies that have claims: a list within a reply costs Redis 6.2 a packet of its own, 5 us measured.
--
-- Defines: claim, claim_into, hold, add_to.

--! include by_field.lua
--! include latest_state.lua
--! include now.lua
--! include readable.lua
--! include unless_odd.lua
--! include keys.lua
--! include lock.lua

-- Milliseconds by which RQ's scheduler, which counts whole seconds, may be early.
local EARLY = 2000
-- Seconds that a list of parked or solitary jobs lives after the last was added. It is a hint: their events are open.
local PARKED_LASTS = 86400
-- Deaths of processes in which an event was one of several under way, after which it is worked on alone.
local COMMON_DEATHS = 2

-- Fields, with their values, of a new event's record, and those that it may have besides before anybody has held it.
local NEW, BESIDES = 2 * $NEW_FIELDS, {'again', 'again_at', 'reconciled', $TRACE}

-- The events that this script has claimed, by their resources; and the fence of an event that nobody has held: fences
-- start at the clock, so that if an event is erased and its id comes again, they do not repeat the earlier ones.
local claimed = {}
local FIRST_FENCE = string.format('%.0f', now + 1)

-- Add what is in a list to another one, which is returned.
local function add_to(list, more)
    local length = #list  -- Lua looks for the end of a list whenever it is asked.
    for place = 1, #more do list[length + place] = more[place] end
    return list
end

-- Claim the event for `who`. Returns what a worker has to know of it, or the reason why it cannot be claimed.
--
-- Fields of `who`: `lease`, in ms; `alone`, whether the process would have nothing else under way; for a worker of ours
-- also `name` and `token`. For its own workers RQ keeps the job's records.
local function claim(id, job, who)
    local key = EVENT .. id
    local fields = unless_odd('HGETALL', key)
    if not fields then return 'unreadable' end
    if #fields == 0 then return 'missing' end
    local record = by_field(fields)
    local state, type, resource, received = record.state, record.type, record.resource, record.received
    local fence, attempts, due, killed, deaths = record.fence, record.attempts, record.due, record.killed, record.deaths
    if unreadable_part(id, state, type, resource, received, fence, attempts, due) then return 'unreadable' end
    if state ~= $ACCEPTED and state ~= $WAITING then return 'settled' end
    local locked_by = lock_of(resource)
    local holder = claimed[resource] or locked_by and holder_of(resource)
    if claimed[resource] == id or (fence or locked_by == id) and runs(id) then return 'held' end
    if state == $WAITING and due and tonumber(due) > now + EARLY then return 'early' end
    received, killed = received or now_text, is_count(killed) and tonumber(killed) or 0
    local suspect = killed > 0 or is_count(deaths) and tonumber(deaths) >= COMMON_DEATHS
    if suspect and not who.alone then
        redis.call('ZADD', solitary, received, job)
        redis.call('EXPIRE', solitary, PARKED_LASTS)
        return 'suspect'
    end
    if holder and holder ~= id then
        if unless_odd('ZADD', parked .. resource, received, job) then
            redis.call('EXPIRE', parked .. resource, PARKED_LASTS)
        end
        unless_odd('ZADD', opened, received, id)
        redis.call('ZADD', open, now, id)
        return 'parked'
    end
    if locked_by == id then
        fence, attempts = last_claim(id, record)
    elseif locked_by then
        remember(locked_by)
    end
    local new = NEW
    for _, field in ipairs(#fields > NEW and BESIDES or {}) do if record[field] then new = new + 2 end end
    local ended = (fence or #fields > new) and fields or {}
    fence = tonumber(fence or 0) > now and string.format('%.0f', fence + 1) or FIRST_FENCE
    attempts = (tonumber(attempts) or 0) + 1
    if state == $WAITING then redis.call('HSET', key, 'state', $ACCEPTED) end
    if due or record.holder then redis.call('HDEL', key, 'due', 'holder') end
    claimed[resource] = id
    return add_to({id, job, now, type, resource, received, fence, attempts, false, killed,
                   suspect and 1 or 0, record[$TRACE] or false, #ended}, ended)
end

-- Have lock and lease for each of the claims, an entry among RQ's started jobs, and in each claim what handlers have
-- seen of its resource.
local function hold(claims, who)
    if #claims == 0 then return end
    local ends, rq_ends = string.format('%.0f', now + who.lease), string.format('%.0f', now / 1000 + $RQ_PATIENCE)
    local token, held, locked, executions, resources = who.token or '', {}, {}, {}, {}
    for place, got in ipairs(claims) do
        held[2 * place - 1], held[2 * place] = ends, got[1]
        locked[2 * place - 1] = got[5]
        locked[2 * place] = got[1] .. ' ' .. got[7] .. ' ' .. got[8] .. ' ' .. token
        executions[2 * place - 1], executions[2 * place] = rq_ends, got[2] .. ':' .. got[7]
        resources[place] = RESOURCE .. got[5]
    end
    redis.call('HSET', locks, unpack(locked))
    redis.call('ZADD', leases, unpack(held))
    if who.name then unless_odd('ZADD', started, unpack(executions)) end
    for place, state in ipairs(redis.call('MGET', unpack(resources))) do
        claims[place][9] = latest_of(state) and state or false
    end
end

-- Claim the event and add the claim to `claims`, or return why not. The job of an event that is settled is deleted.
local function claim_into(claims, id, job, who)
    local got = claim(id, job, who)
    if type(got) == 'table' then
        claims[#claims + 1] = got
        return nil
    end
    if got == 'settled' then redis.call('DEL', 'rq:job:' .. job) end
    return got
end
