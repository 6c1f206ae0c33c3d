-- Take or renew a lock that one process holds, until it expires: that of the sweeper, or of the console that runs jobs.
--
-- ARGV: `sweeper` or `console`; holder; ms that the lock lasts.
-- Reply: 1 if the caller has the lock; 0 if another process has it.

--! include keys.lua

local lock, holder, lasts = prefix .. ARGV[1], ARGV[2], ARGV[3]
local current = redis.call('GET', lock)
if current and current ~= holder then
    -- If the clock went back, the lock of a process that has died would last as much longer.
    if redis.call('PTTL', lock) > tonumber(lasts) then redis.call('PEXPIRE', lock, lasts) end
    return 0
end
redis.call('DEL', lock)  -- A full Redis lets a script pass that begins with this.
redis.call('SET', lock, holder, 'PX', lasts)
return 1
