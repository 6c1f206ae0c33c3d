-- The index of events: sorted sets of webhook-ids by the time when each was received, in ms. See `Keys.event_index`.
--
-- Defines: index_of.

--! include keys.lua

local indexed_types = $EVENT_TYPES

-- Return the key of the index that lists events of this type and resource.
local function index_of(type, resource)
    local bucket = tonumber(string.sub(redis.sha1hex(resource), 1, 2), 16) % $BUCKETS
    return INDEX .. (indexed_types[type] and type or $OTHER) .. ':' .. bucket
end
