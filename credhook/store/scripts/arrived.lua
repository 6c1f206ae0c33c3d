-- Read which types of events some resources have had, and of which they were erased.
--
-- ARGV: resource, and how many of its entries in by_resource earlier calls have read, in turn.
-- Reply: the last entry of by_time; then for each resource a list: 1 if it may have more entries, else 0; how many this
--   call has read; a list of the erased types; and the types of its events, some perhaps twice.

--! include events_of_resource.lua
--! include erased.lua

local left = 500  -- Entries that one script reads.

-- Return the types whose events were erased; all of them if the resource was.
local function erased_types(resource)
    local types = {}
    if not secret then return types end
    local is_whole = redis.call('EXISTS', mark_of(resource)) == 1
    for type in pairs(known_types) do
        if is_whole or redis.call('EXISTS', mark_of(type .. ' ' .. resource)) == 1 then types[#types + 1] = type end
    end
    return types
end

local last = redis.call('XREVRANGE', by_time, '+', '-', 'COUNT', 1)[1]
local reply = {last and last[1] or '0-0'}
for i = 1, #ARGV, 2 do
    local resource, types = ARGV[i], {}
    -- From the end: an entry that the sweeper removes meanwhile does not move unread entries.
    local entries = entries_of(resource, left, ARGV[i + 1])
    for _, entry in ipairs(entries) do
        local _, type = event_at(entry, resource, 'type')
        if type then types[#types + 1] = type end
    end
    reply[#reply + 1] = {#entries == left and 1 or 0, #entries, erased_types(resource), unpack(types)}
    left = left - #entries
end
return reply
