-- See to it that open events that have moved are known by when they came, and no others: versions that know only the
-- open events settle and accept events beside us.
--
-- KEYS: as in keys.lua.
-- ARGV: where to begin in both, and how many of each to look at.
-- Reply: how many were taken out; whether there may be more.

--! include listed.lua
--! include unless_odd.lua

local start, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local gone = {}
local ours = unless_odd('ZRANGE', opened, start, start + most - 1)
local all = unless_odd('ZRANGE', open, start, start + most - 1, 'WITHSCORES')
if not (ours and all) then return {0, 0} end
for _, id in ipairs(ours) do
    if not redis.call('ZSCORE', open, id) then gone[#gone + 1] = id end
end
if #gone > 0 then redis.call('ZREM', opened, unpack(gone)) end
for i = 1, #all, 2 do
    local id, moved = all[i], all[i + 1]
    if not redis.call('ZSCORE', opened, id) then
        local type, resource, received = unpack(unless_odd('HMGET', EVENT .. id, 'type', 'resource', 'received') or {})
        if type and resource and is_count(received) then
            list_missing((place_of(type, resource)), id, received)
            if received ~= moved then redis.call('ZADD', opened, received, id) end
        end
    end
end
return {#gone, (#ours == most or #all == 2 * most) and 1 or 0}
