-- Note that a worker process has died, and let go of the events that it held, so that they can be put back.
--
-- If the process held one event only, this event has killed it. If there were several, each of them may have: no lapse is
-- counted, and after a few such deaths an event is worked on alone.
--
-- ARGV: the worker's name; how it died: 'own' if the process ended by itself, 'ended' if it was ended from outside, 'host'
--   if it may have gone down with its host, or 'look' to change nothing; the death as a failure, in JSON as causes.lua
--   takes it; retention in s; how many events it held; then webhook-ids of events that it may have held.
-- Reply: the webhook-ids that it held.

--! include causes.lua
--! include lock.lua

local call = redis.call
local dead_worker, how, death, retention, number = ARGV[1], ARGV[2], cjson.decode(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local held = {}
for i = 6, #ARGV do
    local id = ARGV[i]
    local state, resource, holder = unpack(call('HMGET', EVENT .. id, 'state', 'resource', 'holder'))
    if state == $ACCEPTED then
        local locked_by, _, _, name = lock_of(resource)
        if holder == dead_worker or locked_by == id and name == dead_worker then held[#held + 1] = id end
    end
end

if how == 'look' then return held end

-- The field in which the death is counted. The death of a host does not speak against its events.
local death_field = how ~= 'host' and (number > 1 and 'deaths' or how == 'own' and 'killed')

local function explain(id)
    if death_field then
        describe(death, retention)
        call('HSET', EVENT .. id, $BLAMED .. death.who, death.id)
    end
    append(id, cjson.encode({died = how, beside = number - 1, cause = death_field and death.id or nil}))
end

for _, id in ipairs(held) do
    local key, ends = EVENT .. id, call('ZSCORE', leases, id)
    remember(id)
    local resource, holder = unpack(call('HMGET', key, 'resource', 'holder'))
    if ends and lock_of(resource) == id then call('HSET', locks, resource, id .. ' 0 0 ' .. ends) end
    call('HDEL', key, 'holder')  -- Before anything is counted, so that nothing is counted twice.
    if death_field then call('HINCRBY', key, death_field, 1) end
    -- The last lapse is of this claim, unless the settlement of this claim was broken off: then the record has no holder.
    if death_field == 'deaths' and holder then call('HINCRBY', key, 'lapses', -1) end
    call('ZADD', leases, 'XX', now, id)
    pcall(explain, id)
end
return held
