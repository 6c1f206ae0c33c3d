-- The time in ms since the epoch, by Redis's clock, since the clocks of hosts may disagree.
--
-- Defines: now.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
