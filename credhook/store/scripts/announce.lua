-- Renew the announcement of a process.
--
-- A worker without heartbeats is reclaimed, which removes its last heartbeat. Its announcement stays for a day, so that
-- the worker is missed. The lapsed announcements of receivers are removed here.
--
-- KEYS: announcements, a hash: name -> "<since> <renewed> <announcement>", both in ms; for workers also the heartbeats, a
--   sorted set: name -> time of the last heartbeat in ms.
-- ARGV: the process's name; its announcement; ms that an announcement lasts.
-- Reply: now, in ms.

--! include expiring.lua

local HEARTBEATS_LAST = 86400000  -- Ms that the heartbeats outlive the last worker.

local announcements, heartbeats = KEYS[1], KEYS[2]
local name, announcement, lasts = ARGV[1], ARGV[2], tonumber(ARGV[3])
redis.call('PEXPIRE', announcements, lasts)  -- A full Redis lets a script pass that begins with this.
local since = string.match(redis.call('HGET', announcements, name) or '', '^(%d+) ') or now_text
write_expiring(announcements, lasts, 'HSET', name, since .. ' ' .. now_text .. ' ' .. announcement)
if heartbeats then
    write_expiring(heartbeats, HEARTBEATS_LAST, 'ZADD', now, name)
    return now
end
local all = redis.call('HGETALL', announcements)
for i = 1, #all, 2 do
    local renewed = tonumber(string.match(all[i + 1], '^%d+ (%d+) '))
    if math.abs(now - renewed) > lasts then redis.call('HDEL', announcements, all[i]) end
end
return now
