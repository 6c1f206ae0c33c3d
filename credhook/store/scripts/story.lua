-- What has happened to an event, where it was more than a handling that succeeded at once.
--
-- Nothing of it is needed to work on the event. Whoever calls this does so where an error loses only the entry.
--
-- Defines: tell.

--! include keys.lua
--! include now.lua

-- Seconds that the story of an open event lasts: the longest wait for which a handler may ask.
local LONGEST_PAUSE = 604800

-- Add to the story what happens now, an object in JSON. It then lasts so many seconds, as the record of a settled event
-- does, or, of an open one, until more has happened.
local function tell(id, entry, seconds)
    local key = STORY .. id
    redis.call('RPUSH', key, string.format('%.0f ', now) .. entry)
    redis.call('LTRIM', key, -$MOST_TOLD, -1)
    redis.call('EXPIRE', key, seconds or LONGEST_PAUSE)
end
