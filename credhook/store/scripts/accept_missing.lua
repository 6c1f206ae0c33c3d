-- Accept a group of events that no delivery has brought, those of one resource in the order of its states.
--
-- KEYS: as in credhook/store/accept.lua.
-- ARGV: likewise.
-- Reply: what became of each, likewise.

--! include accept.lua

return outcomes
