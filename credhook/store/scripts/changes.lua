-- Publishes changes of events, for `credhook events tail`. A script asks Redis once whether there are listeners; if
-- that is forbidden, nothing is published.
--
-- Wants `open`, the key of the open events.
--
-- Defines: listened, publish.

--! include keys.lua
--! include now.lua

local channel = open .. ':changes'
local listening

-- Whether anybody listens. Redis is asked once in a script.
local function listened()
    if listening == nil then
        local reply = redis.pcall('PUBSUB', 'NUMSUB', channel)
        listening = not reply.err and tonumber(reply[2]) > 0
    end
    return listening
end

-- Tell them where an event stands now; `more` is what else there is to say.
local function publish(id, state, type, resource, more)
    if not listened() then return end
    local change = {at = now, id = id, state = state, type = type or '', resource = resource or ''}
    for name, value in pairs(more or {}) do change[name] = value end
    redis.pcall('PUBLISH', channel, cjson.encode(change))
end
