-- Remove events from their index if their records have expired, and from lists of another state than theirs, a bounded
-- number at a time.
--
-- KEYS: as in keys.lua; then the sorted sets of the index, and the lists of settled events.
-- ARGV: time in ms; of the index, only what was received before it is looked at; the key to begin with, counted from 0; how
--   many of its entries to skip; how many entries to look at.
-- Reply: the key to go on with, 0 after the last; and how many of its entries to skip.

--! include keys.lua

-- List -> states of its events. An unreadable record may have been repaired by hand, so that list is left alone.
local states_of = {[dead] = {[$DEAD] = true, [$DATA_GONE] = true}, [quarantined] = {[$QUARANTINED] = true}}
for type in pairs(indexed_types) do states_of[unhandled .. type] = {[$UNHANDLED] = true} end

local before, first, skip, left = '(' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
for i = first + 2, #KEYS do
    local gone, old = {}
    local states = states_of[KEYS[i]]
    if states then
        old = redis.call('ZRANGE', KEYS[i], skip, skip + left - 1)
    else
        old = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', before, 'LIMIT', skip, left)
    end
    for _, id in ipairs(old) do
        local state = redis.pcall('HGET', EVENT .. id, 'state')
        local is_gone = not state or type(state) == 'string' and states and not states[state]
        if is_gone then gone[#gone + 1] = id end
    end
    if #gone > 0 then redis.call('ZREM', KEYS[i], unpack(gone)) end
    left = left - #old
    if left <= 0 then return {i - 2, skip + #old - #gone} end
    skip = 0
end
return {0, 0}
