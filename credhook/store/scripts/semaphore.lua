-- Give an event its place among those that some handlers may have at a time: with all of these handlers, or with none.
--
-- Who is in has a lease; whoever has none any more is out, so that the dead keep no place longer than their leases.
--
-- KEYS: leases; then for each handler the set of the events that it has.
-- ARGV: the event; how long the sets last without being asked for, in ms; then for each handler how many it may have.
-- Reply: 0, or which of the handlers has no place, counted from 1.

--! include now.lua
local leases, event, lasts = KEYS[1], ARGV[1], ARGV[2]
for place = 2, #KEYS do
    local key, others = KEYS[place], 0
    if redis.call('TYPE', key).ok ~= 'set' then redis.call('DEL', key) end
    redis.call('PEXPIRE', key, lasts)
    for _, other in ipairs(redis.call('SMEMBERS', key)) do
        local ends = redis.call('ZSCORE', leases, other)
        if not ends or tonumber(ends) < now then
            redis.call('SREM', key, other)
        elseif other ~= event then
            others = others + 1
        end
    end
    if others >= tonumber(ARGV[place + 1]) then return place - 1 end
end
for place = 2, #KEYS do
    redis.call('SADD', KEYS[place], event)
    redis.call('PEXPIRE', KEYS[place], lasts)
end
return 0
