-- For keys that somebody else may have written to.
--
-- Defines: unless_odd.

-- Run a command and return its reply, or nil if the key holds another type than ours. Any other error ends the script.
local function unless_odd(...)
    local reply = redis.pcall(...)
    if type(reply) == 'table' and reply.err then
        if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err, 0) end
        return nil
    end
    return reply
end
