-- The latest state of a resource that handlers have seen, so that an older one that comes late is told from it.
--
-- Defines: latest_of.

--! include readable.lua

-- Its rank and its `updatedAt` in ms, of what is kept of it; or nothing, if that is nothing of ours.
local function latest_of(kept)
    local rank, updated = string.match(kept or '', '^(%d%d?):(%d+)$')
    if is_count(updated) then return rank, updated end
end
