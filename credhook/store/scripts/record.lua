-- The record of an event, a hash. If something else has written to it, the events beside it go on.

--! include keys.lua

local states = $STATES
local REQUIRED = {'state', 'type', 'resource', 'received'}
local NUMBERS = {'received', 'fence', 'attempts', 'due', 'killed', 'deaths'}

-- Return the reply of HGETALL as a table.
local function by_field(reply)
    local record = {}
    for i = 1, #reply, 2 do record[reply[i]] = reply[i + 1] end
    return record
end

-- Run a command on a hash. Return its reply, or nil if the key holds another type; any other error ends the script.
local function if_hash(...)
    local reply = redis.pcall(...)
    if not reply.err then return reply end
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err, 0) end
end

-- Return the record of an open event as a table, and its fields and values as a list; nil if there is none, or nil and
-- the reason why it cannot be worked on.
local function record_of(id)
    local fields = if_hash('HGETALL', EVENT .. id)
    if not fields then return nil, 'no hash' end
    if #fields == 0 then return nil end
    local record = by_field(fields)
    for _, field in ipairs(REQUIRED) do
        if not record[field] then return nil, 'no ' .. field end
    end
    if not states[record.state] then return nil, 'state' end
    for _, field in ipairs(NUMBERS) do
        if record[field] and not string.find(record[field], '^%d+$') then return nil, field end
    end
    return record, fields
end
