-- The keys of a queue, as `Keys` in credhook/store has them, the ids of its jobs, as credhook/store/job.py has them, and the
-- records of its events.
--
-- The one key of a script, unless it says otherwise, is the prefix of all others. A cluster would want each key declared;
-- it is refused at start (credhook/store/health.py).

local prefix = KEYS[1]
local queue = string.sub(prefix, #$PREFIX + 1, -2)
local EVENT, CONFLICT, SNAPSHOT = prefix .. 'event:', prefix .. 'conflict:', prefix .. 'snapshot:'
local HISTORY = prefix .. 'history:'
local by_time, by_resource = prefix .. 'by_time', prefix .. 'by_resource'
local open, delayed = prefix .. 'open', prefix .. 'delayed'
local leases, locks = prefix .. 'leases', prefix .. 'locks'
local dead, quarantined, unreadable = prefix .. 'dead', prefix .. 'quarantined', prefix .. 'unreadable'
local unhandled, CAUSE = prefix .. 'unhandled:', prefix .. 'cause:'
local urgent, isolated, blocked = prefix .. 'urgent', prefix .. 'isolated', prefix .. 'blocked:'
local refused, backfilled = prefix .. 'refused:', prefix .. 'backfilled'
local erasures = prefix .. 'erasures'
local TRAFFIC = prefix .. 'traffic:'
local jobs, intermediate = 'rq:queue:' .. queue, 'rq:queue:' .. queue .. ':intermediate'
local scheduled, started, failed = 'rq:scheduled:' .. queue, 'rq:wip:' .. queue, 'rq:failed:' .. queue
-- The id of a job begins with one of these; the event's id follows, as it is or in hexadecimal.
local legible = 'e' .. string.sub(redis.sha1hex(queue), 1, 8) .. '-'
local hexed = 'x' .. string.sub(legible, 2)
local known_types = $EVENT_TYPES

-- A version that changes the layout raises the number first. From then on the scripts of another version use no record.
local schema = redis.call('GET', prefix .. 'schema')
if schema and schema ~= '$SCHEMA' then return redis.error_reply('WRONGSCHEMA ' .. queue .. ' ' .. schema) end

-- Two hexadecimal digits -> their byte. A table, because a function called for each byte of long ids took most of a script.
local bytes = setmetatable({}, {__index = function(filled, digits)
    filled[digits] = string.char(tonumber(digits, 16))
    return filled[digits]
end})

-- Return the webhook-id that a job's id names, or nil if the job is not one of this queue's.
local function event_of(job)
    local event = string.sub(job, #legible + 1)
    if string.sub(job, 1, #legible) == legible then return event end
    if string.sub(job, 1, #hexed) ~= hexed then return nil end
    return (string.gsub(event, '%x%x', bytes))
end

-- The record of an event is a hash. If something else has written to it, the events beside it go on.
local states = $STATES
local REQUIRED = {'state', 'type', 'resource', 'received'}
local is_number = {received = true, fence = true, lapses = true, due = true, killed = true, deaths = true, latest = true}

-- Return what follows the prefix in a text, or nil if the text does not begin with it.
local function after_prefix(prefix, text)
    if string.sub(text, 1, #prefix) == prefix then return string.sub(text, #prefix + 1) end
end

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
    for i = 1, #fields, 2 do
        if is_number[fields[i]] and not string.find(fields[i + 1], '^%d+$') then return nil, fields[i] end
    end
    return record, fields
end

-- Return true if a claim with this fence is one of the event as it is now: claims from before an erasure or a replay have
-- lower fences than the time of receipt, or of the replay.
local function is_of(fence, received, replayed)
    return fence - math.max(tonumber(received) or 0, tonumber(replayed) or 0) > 0
end
