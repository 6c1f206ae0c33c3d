-- Become the one who tries whether the platform is well, or remain it.
--
-- A probe that never expires, or later than any may, is not ours. It is replaced, since it would keep everybody from
-- trying.
--
-- KEYS: probe.
-- ARGV: who would try; for how many ms; for how many ms anybody may.
-- Reply: 1 if the caller may try, else 0; 1 if a probe that is not ours was replaced, else 0.

local probe, prober, lasts, longest = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('SET', probe, prober, 'NX', 'PX', lasts) then return {1, 0} end
local left, holder = redis.call('PTTL', probe), redis.pcall('GET', probe)
local honest = left >= 0 and left <= longest and type(holder) ~= 'table'
if honest and holder ~= prober then return {0, 0} end
redis.call('SET', probe, prober, 'PX', lasts)
return {1, honest and 0 or 1}
