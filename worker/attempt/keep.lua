-- Note that the data of an event has been seen, and keep it sealed in place of what was kept before, but no longer than
-- that. Nothing is kept of an event that was erased meanwhile.
--
-- KEYS: snapshot, event.
-- ARGV: the sealed data, or '' if it is not to be kept; seconds for which to keep it.
-- Reply: nothing.

local snapshot, event, sealed, seconds = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
if redis.call('EXISTS', event) == 0 then return end
redis.call('HSET', event, 'seen', 1)
if sealed == '' then return end
local left = redis.call('TTL', snapshot)
redis.call('SET', snapshot, sealed, 'EX', left > 0 and left or seconds)
