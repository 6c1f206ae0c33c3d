-- Write to a key that expires. A crash may cut a script after any write, so a new key is written under another name, gets
-- its expiry, and is renamed. The sweeper deletes a leftover under that name.

-- Run the command on a key of ours, let the key expire in so many ms, and return the command's reply.
local function write_expiring(key, lasts, command, ...)
    local name = key
    if redis.call('EXISTS', key) == 0 then
        name = string.match(key, '^[^:]+:[^:]+:') .. 'unfinished'
        redis.call('SET', name, '')  -- A DEL of a key that is not there would not be in the append-only file, whose
        redis.call('DEL', name)      -- beginning may hold the same key from a script that was cut.
    end
    local reply = redis.call(command, name, ...)
    redis.call('PEXPIRE', name, lasts)
    if name ~= key then redis.call('RENAME', name, key) end
    return reply
end
