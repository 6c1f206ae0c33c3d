-- The latest state of a resource that handlers have seen, so that an older one that comes late is told from it.
--
-- Defines: latest_of.

--! include credhook.ledger/readable.lua
--! include credhook.ledger/unless_odd.lua

-- Its rank and its `updatedAt` in ms, or nil if none is known.
local function latest_of(resource)
    local rank, updated = string.match(unless_odd('GET', $RESOURCE .. resource) or '', '^(%d%d?):(%d+)$')
    if rank and is_count(updated) then return rank, updated end
    return nil
end
