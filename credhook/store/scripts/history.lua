-- The history of an event, where it was more than one attempt that succeeded.
--
-- An event can be worked on without its history: callers ignore errors.
--
-- Defines: append.

--! include keys.lua
--! include now.lua

-- Seconds that the history of an open event lasts: the longest wait for which a handler may ask.
local LONGEST_PAUSE = 604800

-- Append an entry, an object in JSON. The history then lasts `seconds`, as the record of a settled event does.
local function append(id, entry, seconds)
    local key = HISTORY .. id
    redis.call('RPUSH', key, string.format('%.0f ', now) .. entry)
    redis.call('LTRIM', key, -$HISTORY_ENTRIES, -1)
    redis.call('EXPIRE', key, seconds or LONGEST_PAUSE)
end
