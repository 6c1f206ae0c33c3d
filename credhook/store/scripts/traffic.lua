-- Counts by minute, a hash for each hour; see credhook/store/traffic.py. No event depends on them: if Redis refuses to
-- count, the script goes on.

--! include keys.lua
--! include expiring.lua

local TRAFFIC_LASTS = 3600000 * $TRAFFIC_HOURS  -- Ms that an hour's counts are kept.
local counts = {}

-- Count events of a type, or runs of a handler, whose name follows $HANDLER.
local function count(outcome, name)
    local field = outcome .. name
    counts[field] = (counts[field] or 0) + 1
end

-- Write what this script has counted, with one command for each type and handler.
local function write_counts()
    local minute = math.floor(now / 60000)
    local key, at = TRAFFIC .. math.floor(minute / 60), minute % 60 .. ' '
    for field, events in pairs(counts) do
        local total = redis.pcall('HINCRBY', key, at .. field, events)
        if total == events then redis.pcall('PEXPIRE', key, TRAFFIC_LASTS) end  -- The first of its minute.
    end
end
