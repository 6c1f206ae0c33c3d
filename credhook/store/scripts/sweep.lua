-- Take events whose records have expired from their index, a bounded number at a time.
--
-- KEYS: as in keys.lua; then the sorted sets of the index.
-- ARGV: time in ms; only what was received before it is looked at; the key to begin with, counted from 0; how many of
--   its entries to skip; how many entries to look at.
-- Reply: the key to go on with, 0 after the last; and how many of its entries to skip.

--! include keys.lua

local before, first, skip, left = '(' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
for i = first + 2, #KEYS do
    local gone = {}
    local old = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', before, 'LIMIT', skip, left)
    for _, id in ipairs(old) do
        if redis.call('EXISTS', EVENT .. id) == 0 then gone[#gone + 1] = id end
    end
    if #gone > 0 then redis.call('ZREM', KEYS[i], unpack(gone)) end
    left = left - #old
    if left <= 0 then return {i - 2, skip + #old - #gone} end
    skip = 0
end
return {0, 0}
