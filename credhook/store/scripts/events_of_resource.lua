-- The events of a resource, read from the index and the records.

--! include index.lua

local MOST_SEEN = 8  -- Events of a resource that are asked for the latest state that handlers have seen.

-- Return the webhook-id at an entry and these fields of its record, or nothing if no event of the resource is there.
local function event_at(entry, resource, ...)
    local listed = redis.call('XRANGE', by_time, entry, entry)[1]
    local id = listed and listed[2][2]
    local fields = id and if_hash('HMGET', EVENT .. id, 'resource', ...)
    if fields and fields[1] == resource then return id, unpack(fields, 2) end
end

-- Return the latest state of a resource that handlers have seen, as the records of its last events have it, or 0. `own`: as
-- the record of an event has it that is read already.
local function latest_of(resource, own)
    local latest, entries = tonumber(own or 0), entries_of(resource, MOST_SEEN)
    if #entries == 1 then return latest end  -- Most resources have no other event.
    for _, entry in ipairs(entries) do
        local _, seen = event_at(entry, resource, 'latest')
        latest = math.max(latest, tonumber(seen or 0) or 0)
    end
    return latest
end
