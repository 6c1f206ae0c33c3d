-- The clock, and keys that expire.

-- Ms since the epoch by Redis's clock: the clocks of hosts may disagree. Also as text: to write a number costs Redis as
-- much as some commands do.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_text = string.format('%.0f', now)

-- Run the command on a key of ours, let the key expire in so many ms, and return the command's reply. A crash may cut a
-- script after any write, so a new key is written under another name, gets its expiry, and is renamed. The sweeper
-- deletes a leftover under that name.
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
