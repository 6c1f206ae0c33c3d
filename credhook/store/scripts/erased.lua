-- What was erased: a mark is left of each erased event, and of each resource that was erased as a whole. Deliveries and
-- backfills do not bring back what has a mark.
--
-- A mark is a key whose name ends with a keyed hash. The hash's key lies in Redis as well, and goes with the last mark.
-- So marks list no ids: a reader of Redis can only test an id that they already know.

--! include keys.lua

local ERASED, hash_key = prefix .. 'erased:', prefix .. 'erased'
local secret = redis.call('GET', hash_key)

-- Return the key of a mark. `erased`: a resource, or an event's type, a blank and its resource.
local function mark_of(erased)
    return ERASED .. string.sub(redis.sha1hex(secret .. redis.sha1hex(secret .. erased)), 1, 32)
end
