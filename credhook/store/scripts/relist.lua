-- List events that nobody has listed: they were accepted by a version that did not know of it.
--
-- KEYS: as in keys.lua.
-- ARGV: the webhook-ids to look at.
-- Reply: how many were not listed yet. What cannot be read is left to the reconciler.

--! include listed.lua
--! include unless_odd.lua

local count = 0
for _, id in ipairs(ARGV) do
    local type, resource, received = unpack(unless_odd('HMGET', EVENT .. id, 'type', 'resource', 'received') or {})
    if type and resource and is_count(received) then
        count = count + list_missing((place_of(type, resource)), id, received)
    end
end
return count
