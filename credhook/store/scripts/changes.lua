-- Publish changes of events, for `credhook events tail`, if there are listeners.

--! include keys.lua
--! include expiring.lua

local channel = open .. ':changes'
local listening

-- Publish the state of an event; `more` holds further fields. If that is forbidden, nothing is published.
local function publish(id, state, type, resource, more)
    if listening == nil then  -- Redis is asked once in a script.
        local reply = redis.pcall('PUBSUB', 'NUMSUB', channel)
        listening = not reply.err and tonumber(reply[2]) > 0
    end
    if not listening then return end
    local change = {at = now, id = id, state = state, type = type or '', resource = resource or ''}
    for name, value in pairs(more or {}) do change[name] = value end
    redis.pcall('PUBLISH', channel, cjson.encode(change))
end
