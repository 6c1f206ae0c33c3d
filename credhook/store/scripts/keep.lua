-- Note that the data of an event was seen, and keep the sealed data. Data that replaces older data expires when the older
-- data would have. Nothing is kept of an event that was erased or settled meanwhile.
--
-- ARGV: webhook-id; the sealed data, or '' if it is not to be kept; seconds for which to keep it.

--! include keys.lua

local event, snapshot, sealed, seconds = EVENT .. ARGV[1], SNAPSHOT .. ARGV[1], ARGV[2], ARGV[3]
local state = redis.call('HGET', event, 'state')
if state ~= $ACCEPTED and state ~= $WAITING then return end
redis.call('HSET', event, 'seen', 1)
if sealed == '' then return end
local left = redis.call('PTTL', snapshot)  -- TTL would round half a second down to 0.
redis.call('SET', snapshot, sealed, 'PX', left >= 0 and math.max(1, left) or seconds * 1000)
