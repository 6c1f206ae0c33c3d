-- Give an event a place with each of some handlers that may have only so many events at a time, or with none of them.
--
-- An event keeps its places as long as its lease: the dead give theirs up by themselves.
--
-- KEYS: leases; then for each handler the set of its events.
-- ARGV: webhook-id; ms that the sets last; then for each handler its limit.
-- Reply: 0, or the number of the first handler that is full, from 1.

--! include expiring.lua

local leases, event, lasts = KEYS[1], ARGV[1], ARGV[2]
for place = 2, #KEYS do
    local others = 0
    for _, other in ipairs(redis.call('SMEMBERS', KEYS[place])) do
        local ends = redis.call('ZSCORE', leases, other)
        if not ends or tonumber(ends) < now then
            redis.call('SREM', KEYS[place], other)
        elseif other ~= event then
            others = others + 1
        end
    end
    if others >= tonumber(ARGV[place + 1]) then return place - 1 end
end
for place = 2, #KEYS do write_expiring(KEYS[place], lasts, 'SADD', event) end
return 0
