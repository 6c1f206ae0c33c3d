-- Say what a process is, and hear what the others say.
--
-- Each value is "<since> <renewed> <announcement>", both in ms. What is not renewed is forgotten.
--
-- KEYS: the announcements.
-- ARGV: the process's token; its announcement; ms that an announcement lasts unless it is renewed.
-- Reply: now, in ms; since when this process has announced; then of each other its `since` and its announcement.

--! include now.lua
--! include readable.lua
--! include unless_odd.lua

local announcements, token, mine, lasts = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local since, others = now, {}
local all = unless_odd('HGETALL', announcements)
if not all then return {now, now} end  -- Somebody else's; the reconciler names it.
for i = 1, #all, 2 do
    local began, renewed, said = string.match(all[i + 1], '^(%d+) (%d+) (.+)$')
    local lives = is_count(began) and is_count(renewed) and now - renewed <= lasts
    if all[i] == token then
        if lives then since = tonumber(began) end
    elseif lives then
        others[#others + 1] = tonumber(began)
        others[#others + 1] = said
    else
        redis.call('HDEL', announcements, all[i])
    end
end
redis.call('HSET', announcements, token, string.format('%.0f %.0f ', since, now) .. mine)
redis.call('PEXPIRE', announcements, lasts)
return {now, since, unpack(others)}
