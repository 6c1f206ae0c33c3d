-- Pause the calls to a platform for the whole fleet. A longer pause stays.
--
-- KEYS: platform; heartbeats.
-- ARGV: ms; cause, a word; calls of this process that were answered within a second; CREDHOOK_RATE, or 0.
-- Reply: ms that the platform was paused for already; calls per second that have passed, or '' unless a 429 ends them.

--! include platform.lua

-- Processes share the work equally, so the count of one process stands for all.
local estimate = math.max(1, ARGV[3]) * math.max(1, redis.call('ZCARD', KEYS[2]))
return {pause_platform(KEYS[1], tonumber(ARGV[1]), ARGV[2], estimate, tonumber(ARGV[4]))}
