-- Take from a sorted set of listed events those that have been forgotten.
--
-- KEYS: as in keys.lua; the sorted set.
-- ARGV: the webhook-ids to look at.
-- Reply: how many were taken.

--! include keys.lua
--! include unless_odd.lua

local taken = 0
for _, id in ipairs(ARGV) do
    if redis.call('EXISTS', EVENT .. id) == 0 then taken = taken + (unless_odd('ZREM', KEYS[2], id) or 0) end
end
return taken
