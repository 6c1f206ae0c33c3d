-- Acquire, renew or release a lease: one holder at a time, until it expires.
--
-- KEYS: lease.
-- ARGV: holder; ms that the lease lasts, 0 to release it.
-- Reply: 1 if the caller holds the lease, or has released it; 0 if another process holds it.

local lease, holder, lasts = KEYS[1], ARGV[1], ARGV[2]
local current = redis.call('GET', lease)
if current and current ~= holder then return 0 end
redis.call('DEL', lease)  -- A full Redis lets a script pass that begins with this.
if lasts ~= '0' then redis.call('SET', lease, holder, 'PX', lasts) end
return 1
