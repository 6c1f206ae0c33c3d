-- Give an event a place with a handler that may have only so many runs at a time, or in a second.
--
-- An event keeps its place no longer than its lease, so that the places of dead workers become free.
--
-- KEYS: leases; the set of the handler's events; the beginning of its bucket's key, see platform.lua.
-- ARGV: webhook-id; ms that the set lasts; the handler's limit, or 0; its runs per second, or 0; microseconds that the
--   event may wait for its turn at most.
-- Reply: 1 if the event has a place, else 0; microseconds until the run may begin, or until there is a turn.

--! include expiring.lua
--! include platform.lua

local leases, running = KEYS[1], KEYS[2]
local event, lasts, limit, rate, longest = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local micros = time[1] * 1000000 + time[2]
local others = 0
for _, other in ipairs(redis.call('SMEMBERS', running)) do
    local ends = redis.call('ZSCORE', leases, other)
    if not ends or tonumber(ends) < now then
        redis.call('SREM', running, other)
    elseif other ~= event then
        others = others + 1
    end
end
if limit > 0 and others >= limit then return {0, 0} end
local bucket = bucket_of(KEYS[3], rate, longest, micros)
local permitted, wait = 1, 0
if bucket then permitted, wait = take_call(bucket, longest, micros) end
if limit > 0 and permitted == 1 then write_expiring(running, lasts, 'SADD', event) end
return {permitted, wait}
