-- A key that something else has written must not stop the events beside it.
--
-- Defines: if_hash.

-- Run a command on a hash. Return its reply, or nil if the key holds another type; any other error ends the script.
local function if_hash(...)
    local reply = redis.pcall(...)
    if not reply.err then return reply end
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err, 0) end
    return nil
end
