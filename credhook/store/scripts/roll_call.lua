-- Note that a worker process is alive, and find those that have been silent for too long.
--
-- KEYS: the workers.
-- ARGV: the worker's token; silence in ms after which a process counts as dead; '1' if the silent ones are wanted.
-- Reply: the tokens of the silent ones. Each is told to one process only.

--! include now.lua
--! include unless_odd.lua

local ROLL_LASTS = 86400000  -- Milliseconds that the list of workers outlives the last of them.
local MOST_SILENT = 100      -- Silent ones that one call finds.

local workers, token, silence, wanted = KEYS[1], ARGV[1], ARGV[2], ARGV[3] == '1'
if not unless_odd('ZADD', workers, now, token) then return {} end
redis.call('PEXPIRE', workers, ROLL_LASTS)
if not wanted then return {} end
local silent = redis.call('ZRANGEBYSCORE', workers, '-inf', now - silence, 'LIMIT', 0, MOST_SILENT)
for _, one in ipairs(silent) do redis.call('ZREM', workers, one) end
return silent
