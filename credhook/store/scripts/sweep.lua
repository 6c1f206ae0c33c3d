-- Remove events from their index if their records have expired, and from causes that their records do not name, a bounded
-- number at a time.
--
-- KEYS: as in keys.lua; then the sorted sets of the index, and those of the causes.
-- ARGV: time in ms; of the index, only what was received before it is looked at; the key to begin with, counted from 0; how many of
--   its entries to skip; how many entries to look at.
-- Reply: the key to go on with, 0 after the last; and how many of its entries to skip.

--! include keys.lua

local before, first, skip, left = '(' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- Return true if the record is gone or done, or names another cause.
local function has_left(id, who, cause)
    local reply = redis.pcall('HMGET', EVENT .. id, 'state', $BLAMED .. who)
    return reply.err or reply[1] == $DONE or reply[2] ~= cause
end

for i = first + 2, #KEYS do
    local gone, old = {}
    local cause = string.match(string.sub(KEYS[i], #causes + 1), '^:(.*):events$')
    local who = cause and redis.call('HGET', causes .. ':' .. cause, 'who') or ''
    if cause then
        old = redis.call('ZRANGE', KEYS[i], skip, skip + left - 1)
    else
        old = redis.call('ZRANGEBYSCORE', KEYS[i], '-inf', before, 'LIMIT', skip, left)
    end
    for _, id in ipairs(old) do
        if cause and has_left(id, who, cause) or not cause and redis.call('EXISTS', EVENT .. id) == 0 then
            gone[#gone + 1] = id
        end
    end
    if #gone > 0 then redis.call('ZREM', KEYS[i], unpack(gone)) end
    left = left - #old
    if left <= 0 then return {i - 2, skip + #old - #gone} end
    skip = 0
end
return {0, 0}
