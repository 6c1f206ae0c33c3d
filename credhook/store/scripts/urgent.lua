-- Which jobs are urgent, and how workers are told to take them first.
--
-- The list of urgent jobs is a hint: each of them is in RQ's queue as well, so that it does not matter if the list
-- cannot be written, or loses some.

--! include expiring.lua

local MOST_URGENT = 10000  -- Jobs that the list holds at most.
local URGENT_LASTS = 3600000  -- Ms that the list lives after the last job was added.
local urgent_types = $URGENT

-- Add jobs to the list.
local function hint(urgent, ...)
    local trimmed = redis.pcall('LTRIM', urgent, select('#', ...) - MOST_URGENT, -1)
    if trimmed.err then return end
    pcall(write_expiring, urgent, URGENT_LASTS, 'RPUSH', ...)
end
