-- Note that a worker process has died, and let go of the events that it held, so that they can be put back.
--
-- If the process was working on one event only, that event has killed it. If there were several, each of them may have:
-- their attempts do not count, and after a few such deaths an event is worked on alone.
--
-- KEYS: as in keys.lua.
-- ARGV: the worker's token; '1' if the process ended by itself, '0' if somebody ended it, 'host' if it may have gone
--   down with its host; the death as a failure, in JSON as `blame` wants it; retention in s.
-- Reply: the webhook-ids of the events that it held.

--! include causes.lua
--! include readable.lua
--! include story.lua
--! include unless_odd.lua
--! include keys.lua
--! include lock.lua

local MOST_LEASES = 20000  -- Leases that are looked at: more than any fleet has events under way.

local call = redis.call
local death, retention = cjson.decode(ARGV[3]), ARGV[4]
local held = {}
for _, id in ipairs(call('ZRANGEBYSCORE', leases, '-inf', now + $LONGEST_LOCK, 'LIMIT', 0, MOST_LEASES)) do
    local state, resource, holder = unpack(unless_odd('HMGET', EVENT .. id, 'state', 'resource', 'holder') or {})
    local locked_by, _, _, token = lock_of(resource)
    local is_its = holder == ARGV[1] or locked_by == id and token == ARGV[1]
    if state == $ACCEPTED and is_its then held[#held + 1] = id end
end

local function raise(key, field, by)
    local count = call('HGET', key, field)
    call('HSET', key, field, math.max(0, (is_count(count) and tonumber(count) or 0) + by))
end

-- What is counted with each of them, if it speaks against them: not if the process has gone down with its host.
local counted = ARGV[2] ~= 'host' and #held > 1 and 'deaths' or ARGV[2] == '1' and 'killed'

-- Count the death with the event, if it speaks against it, and tell of it.
local function explain(id)
    if counted then fail(causes, id, death, true, retention) end
    tell(id, cjson.encode({died = ARGV[2], beside = #held - 1, cause = counted and death.id or nil}))
end

for _, id in ipairs(held) do
    local key = EVENT .. id
    remember(id)
    keep_lock(id, call('HGET', key, 'resource'))
    call('HDEL', key, 'holder')  -- Before anything is counted, so that nothing is counted twice.
    if counted then raise(key, counted, 1) end
    if counted == 'deaths' then raise(key, 'attempts', -1) end
    call('ZADD', leases, 'XX', now, id)
    pcall(explain, id)
end
return held
