-- Hints: the list of urgent jobs, and changes for `credhook events tail`. No event depends on them. If Redis refuses a
-- hint, the script goes on.

--! include keys.lua
--! include expiring.lua

local MOST_URGENT = 10000  -- Jobs that the list holds at most.
local URGENT_LASTS = 3600000  -- Ms that the list lives after the last job was added.
local urgent_types = $URGENT

local channel = open .. ':changes'
local listening

-- Add jobs to the list that workers take from first. Each of them is in RQ's queue as well.
local function push_urgent(...)
    local trimmed = redis.pcall('LTRIM', urgent, select('#', ...) - MOST_URGENT, -1)
    if trimmed.err then return end
    pcall(write_expiring, urgent, URGENT_LASTS, 'RPUSH', ...)
end

-- Return true if somebody listens to changes. Redis is asked once in a script.
local function has_listeners()
    if listening == nil then
        local reply = redis.pcall('PUBSUB', 'NUMSUB', channel)
        listening = not reply.err and tonumber(reply[2]) > 0
    end
    return listening
end

-- Publish the state of an event if there are listeners. `more` holds further fields.
local function publish(id, state, type, resource, more)
    if not has_listeners() then return end
    local change = {at = now, id = id, state = state, type = type or '', resource = resource or ''}
    for name, value in pairs(more or {}) do change[name] = value end
    redis.pcall('PUBLISH', channel, cjson.encode(change))
end
