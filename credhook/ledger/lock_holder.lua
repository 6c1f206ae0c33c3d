-- Who holds the lock of a resource.
--
-- Defines: holder_of.

--! include credhook.ledger/unless_odd.lua

-- The event that holds the lock under this key, or nil. A lock that never expires, or that expires later than any lease
-- would, is not ours: it counts as free, since it would block the resource for ever.
local function holder_of(key)
    local holder = unless_odd('GET', key)
    if not holder then return nil end
    local left = redis.call('PTTL', key)
    if left < 0 or left > $LONGEST_LOCK then return nil end
    return holder
end
