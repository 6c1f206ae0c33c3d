-- Note that Redis's clock has stepped, and after a step forward prolong the leases that it has ended.
--
-- Each process notices a step. The first of them notes it.
--
-- ARGV: ms of the step, negative if the clock was set back; lease in ms; ms that the note lasts.
-- Reply: 1 if no other process has noted this step, else 0; how many leases were prolonged, MOST_LEASES if there may be more.

--! include keys.lua
--! include expiring.lua

local MOST_LEASES = 2000  -- Leases that one call prolongs.
local SAME_WITHIN = 60000  -- Ms within which all processes notice a step.

local step, lease, lasts = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local clock = prefix .. 'clock'
local at, noted = unpack(redis.call('HMGET', clock, 'at', 'step'))
local is_first = not at or math.abs(now - at) > SAME_WITHIN or math.abs(step - noted) > $CLOCK_STEP_MS
if is_first then write_expiring(clock, lasts, 'HSET', 'at', now_text, 'step', ARGV[1]) end
local ended = redis.call('ZRANGEBYSCORE', leases, string.format('%.0f', now - step), now_text, 'LIMIT', 0, MOST_LEASES)
local ends = string.format('%.0f', now + lease)
for _, id in ipairs(ended) do redis.call('ZADD', leases, 'XX', ends, id) end
return {is_first and 1 or 0, #ended}
