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

local MOST_LEASES = 20000  -- Leases that are looked at: more than any fleet has events under way.

local call = redis.call
local death, retention = cjson.decode(ARGV[3]), ARGV[4]
local held = {}
for _, id in ipairs(call('ZRANGEBYSCORE', leases, '-inf', now + $LONGEST_LOCK, 'LIMIT', 0, MOST_LEASES)) do
    if unless_odd('HGET', $EVENT .. id, 'holder') == ARGV[1] then held[#held + 1] = id end
end

local function raise(key, field, by)
    local count = call('HGET', key, field)
    call('HSET', key, field, math.max(0, (is_count(count) and tonumber(count) or 0) + by))
end

-- Count the death with the event, if it speaks against it, and tell of it.
local function explain(id, counts)
    if counts then fail(causes, id, death, true, retention) end
    tell(id, cjson.encode({died = ARGV[2], beside = #held - 1, cause = counts and death.id or nil}))
end

for _, id in ipairs(held) do
    local key = $EVENT .. id
    call('HDEL', key, 'holder')  -- First, so that nothing is counted twice.
    if ARGV[2] == 'host' then  -- None of its events has done that.
    elseif #held > 1 then
        raise(key, 'deaths', 1)
        raise(key, 'attempts', -1)
    elseif ARGV[2] == '1' then
        raise(key, 'killed', 1)
    end
    call('ZADD', leases, 'XX', now, id)
    pcall(explain, id, ARGV[2] ~= 'host' and (#held > 1 or ARGV[2] == '1'))
end
return held
