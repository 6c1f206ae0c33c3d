-- Read those of some events that match a filter.
--
-- ARGV: the filter, as JSON; then each event's webhook-id, and the time in ms that counts if its record says none.
--   The filter: `from` and `until`, in ms; and if they matter `types` and `states`, sets, `resource` and `handler`.
-- Reply: of each event webhook-id, type, state and time.

--! include keys.lua

local filter = cjson.decode(ARGV[1])
local types, states, resource, handler = filter.types, filter.states, filter.resource, filter.handler
local reply = {}

local function has_word(words, word)
    return words and string.find(' ' .. words .. ' ', ' ' .. word .. ' ', 1, true)
end

-- Return type, state and time of the event, or nothing if it does not match.
local function matched(id, listed)
    local fields = {'type', 'state', 'received', 'resource', $HANDLER .. (handler or ''), $PENDING .. (handler or ''), $ONLY}
    local record = if_hash('HMGET', EVENT .. id, unpack(fields)) or {'', $UNREADABLE}
    if not (record[1] or record[2] or record[3]) then return nil end  -- It has expired, or was erased.
    local type, state = record[1] or '', record[2] or $UNREADABLE
    local received = tonumber(record[3] or listed) or tonumber(listed)
    if received < filter.from or received >= filter['until'] then return nil end
    if types and not types[type] or states and not states[state] then return nil end
    if resource and record[4] ~= resource then return nil end
    if handler and not (record[5] or record[6] or has_word(record[7], handler)) then return nil end
    return type, state, received
end

for i = 2, #ARGV, 2 do
    local type, state, received = matched(ARGV[i], ARGV[i + 1])
    if type then reply[#reply + 1] = {ARGV[i], type, state, string.format('%.0f', received)} end
end
return reply
