-- The time in ms since the epoch, by Redis's clock, since the clocks of hosts may disagree.
--
-- It is there as a text as well: to write a number costs Redis as much as some commands do.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_text = string.format('%.0f', now)
