-- Note that an event's data was seen, and keep the sealed data of its presentation. Data that replaces older data expires
-- when the older data would have. Nothing is kept of an event that was erased, replayed or settled meanwhile.
--
-- ARGV: webhook-id; the claim's fence; resource; the sealed data, or '' if it is not to be kept; seconds for which to keep
--   it.

--! include keys.lua

local event, fence, snapshot, sealed, lasts = EVENT .. ARGV[1], ARGV[2], SNAPSHOT .. ARGV[3], ARGV[4], 1000 * ARGV[5]
local state, received, replayed = unpack(redis.call('HMGET', event, 'state', 'received', 'replayed'))
if state ~= $ACCEPTED and state ~= $WAITING or not is_of(fence, received, replayed) then return end
redis.call('HSET', event, 'seen', 1)
if sealed == '' then return end
local left = redis.call('PTTL', snapshot)  -- TTL would round half a second down to 0.
-- If the clock went back, the older data would last longer than a day.
redis.call('SET', snapshot, sealed, 'PX', left >= 0 and math.min(lasts, math.max(1, left)) or lasts)
