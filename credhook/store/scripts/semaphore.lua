-- Give an event a place with a handler that may have only so many runs at a time.
--
-- An event keeps its place no longer than its lease, so that the places of dead workers become free.
--
-- KEYS: leases; the set of the handler's events.
-- ARGV: webhook-id; ms that the set lasts; the handler's limit.
-- Reply: 1 if the event has a place, 0 if there is none.

--! include expiring.lua

local leases, running = KEYS[1], KEYS[2]
local event, lasts, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local others = 0
for _, other in ipairs(redis.call('SMEMBERS', running)) do
    local ends = redis.call('ZSCORE', leases, other)
    if not ends or tonumber(ends) < now then
        redis.call('SREM', running, other)
    elseif other ~= event then
        others = others + 1
    end
end
if others >= limit then return 0 end
write_expiring(running, lasts, 'SADD', event)
return 1
