-- The record of an open event.
--
-- Defines: record_of.

--! include keys.lua
--! include if_hash.lua

local states = $STATES
local REQUIRED = {'state', 'type', 'resource', 'received'}
local NUMBERS = {'received', 'fence', 'attempts', 'due', 'killed', 'deaths'}

-- Return the record as a table, and its fields and values as a list; nil if there is none, or nil and the reason why it
-- cannot be worked on.
local function record_of(id)
    local fields = if_hash('HGETALL', EVENT .. id)
    if not fields then return nil, 'no hash' end
    if #fields == 0 then return nil end
    local record = {}
    for i = 1, #fields, 2 do record[fields[i]] = fields[i + 1] end
    for _, field in ipairs(REQUIRED) do
        if not record[field] then return nil, 'no ' .. field end
    end
    if not states[record.state] then return nil, 'state' end
    for _, field in ipairs(NUMBERS) do
        if record[field] and not string.find(record[field], '^%d+$') then return nil, field end
    end
    return record, fields
end
