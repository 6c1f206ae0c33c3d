-- Renew the announcement of a process.
--
-- KEYS: announcements, a hash: name -> "<since> <renewed> <announcement>", both in ms; and for workers the beats, a sorted
--   set: name -> time of the last beat in ms. A worker that stops beating is reclaimed, which removes the beat; the
--   announcement stays for a day, so that the worker is missed. Without beats, lapsed announcements are removed here.
-- ARGV: the process's name; its announcement; ms that an announcement lasts.
-- Reply: now, in ms.

--! include expiring.lua

local BEATS_LAST = 86400000  -- Milliseconds that the beats outlive the last worker.

local announcements, beats = KEYS[1], KEYS[2]
local name, announcement, lasts = ARGV[1], ARGV[2], tonumber(ARGV[3])
redis.call('PEXPIRE', announcements, lasts)  -- A full Redis lets a script pass that begins with this.
local since = string.match(redis.call('HGET', announcements, name) or '', '^(%d+) ') or now_text
write_expiring(announcements, lasts, 'HSET', name, since .. ' ' .. now_text .. ' ' .. announcement)
if beats then
    write_expiring(beats, BEATS_LAST, 'ZADD', now, name)
    return now
end
local all = redis.call('HGETALL', announcements)
for i = 1, #all, 2 do
    local renewed = tonumber(string.match(all[i + 1], '^%d+ (%d+) '))
    if now - renewed > lasts then redis.call('HDEL', announcements, all[i]) end
end
return now
