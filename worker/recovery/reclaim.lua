-- Note that a worker process has died, and let go of the events that it held, so that they can be put back.
--
-- If the process was working on one event only, that event has killed it. If there were several, each of them may have:
-- their attempts do not count, and after a few such deaths an event is worked on alone.
--
-- KEYS: as in worker_keys.lua.
-- ARGV: the worker's token; '1' if the process ended by itself, '0' if somebody ended it, 'host' if it may have gone
--   down with its host; the death as a failure, in JSON as `blame` wants it; retention in s.
-- Reply: the webhook-ids of the events that it held.

--! include credhook.ledger/causes.lua
--! include credhook.ledger/readable.lua
--! include credhook.ledger/story.lua
--! include credhook.ledger/unless_odd.lua
--! include credhook.ledger/worker_keys.lua
--! include credhook.ledger/lock.lua

local MOST_LEASES = 20000  -- Leases that are looked at: more than any fleet has events under way.

local call = redis.call
local death, retention = cjson.decode(ARGV[3]), ARGV[4]
local held = {}
for _, id in ipairs(call('ZRANGEBYSCORE', leases, '-inf', now + $LONGEST_LOCK, 'LIMIT', 0, MOST_LEASES)) do
    local resource = unless_odd('HGET', $EVENT .. id, 'resource')
    local locked_by, fence, attempts, token = lock_of(resource)
    if locked_by == id and token == ARGV[1] then
        held[#held + 1] = {id = id, resource = resource, fence = fence, attempts = attempts}
    end
end

local function raise(key, field)
    local count = call('HGET', key, field)
    call('HSET', key, field, (is_count(count) and tonumber(count) or 0) + 1)
end

-- Count the death with the event, if it speaks against it, and tell of it.
local function explain(id, counts)
    if counts then fail(causes, id, death, true, retention) end
    tell(id, cjson.encode({died = ARGV[2], beside = #held - 1, cause = counts and death.id or nil}))
end

local ids = {}
for place, one in ipairs(held) do
    local key, blames, attempts = $EVENT .. one.id, ARGV[2] ~= 'host', tonumber(one.attempts)
    if blames and #held > 1 then attempts = math.max(0, attempts - 1) end
    -- First the lock, which is nobody's from now on, so that nothing is counted twice.
    call('HSET', locks, one.resource, lock_by(one.id, one.fence, attempts, ''))
    if blames and #held > 1 then
        raise(key, 'deaths')
    elseif ARGV[2] == '1' then
        raise(key, 'killed')
    end
    call('ZADD', leases, 'XX', now, one.id)
    pcall(explain, one.id, blames and (#held > 1 or ARGV[2] == '1'))
    ids[place] = one.id
end
return ids
