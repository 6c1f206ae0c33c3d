-- Compare events with a filter: an object with `from` and `until`, in ms, and if they matter `types` and `states`, sets,
-- `resource` and `handler`.

--! include index.lua

local function has_word(words, word)
    return words and string.find(' ' .. words .. ' ', ' ' .. word .. ' ', 1, true)
end

-- Return what a list shows of an event: webhook-id, type, state, entry in by_time. Return nil if
-- the event does not match or has no record, or if its record leads to another entry than `entry`.
-- If the record does not say when the event was received, `listed` counts, in ms.
local function matched(filter, id, listed, entry)
    local handler = filter.handler or ''
    local fields = {'type', 'state', 'received', 'place', 'resource', $HANDLER .. handler, $PENDING .. handler, $ONLY}
    local record = if_hash('HMGET', EVENT .. id, unpack(fields)) or {'', $UNREADABLE}
    local type, state, received, place, resource = unpack(record, 1, 5)
    if not (type or state or received) then return nil end
    local leads_to = entry_of(received, place)
    if entry and leads_to and leads_to ~= entry then return nil end
    type, state, received = type or '', state or $UNREADABLE, tonumber(received or listed) or tonumber(listed)
    if received < filter.from or received >= filter['until'] then return nil end
    if filter.types and not filter.types[type] or filter.states and not filter.states[state] then return nil end
    if filter.resource and resource ~= filter.resource then return nil end
    if handler ~= '' and not (record[6] or record[7] or has_word(record[8], handler)) then return nil end
    return {id, type, state, entry or leads_to or string.format('%.0f-0', received)}
end
