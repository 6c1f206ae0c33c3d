-- Write to a key that expires. A crash may cut a script after any write, so a new key is written under another name, gets
-- its expiry, and is renamed. The sweeper deletes a leftover under that name.

-- Run the command on a key of ours, let the key expire in so many ms, and return the command's reply.
local function write_expiring(key, lasts, command, ...)
    local name = key
    if redis.call('EXISTS', key) == 0 then
        name = string.match(key, '^[^:]+:[^:]+:') .. 'unfinished'
        redis.call('DEL', name)
    end
    local reply = redis.call(command, name, ...)
    redis.call('PEXPIRE', name, lasts)
    if name ~= key then redis.call('RENAME', name, key) end
    return reply
end
