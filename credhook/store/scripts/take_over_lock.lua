-- Take over a lock that somebody has, if it is none of ours: one that never expires, or later than any of ours, would
-- keep everybody waiting.
--
-- KEYS: the lock.
-- ARGV: what ours would say; for how many ms; for how many ms anybody's may be locked.
-- Reply: 1 if it is ours now, else 0; 1 if one that is none of ours was replaced, else 0.

local left, kind = redis.call('PTTL', KEYS[1]), redis.call('TYPE', KEYS[1]).ok
local honest = kind == 'none' or (kind == 'string' and left ~= -1 and left <= tonumber(ARGV[3]))
if honest and kind ~= 'none' then return {0, 0} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, honest and 0 or 1}
