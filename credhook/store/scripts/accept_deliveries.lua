-- Accept a group of deliveries.
--
-- KEYS: as in credhook/store/accept.lua.
-- ARGV: likewise.
-- Reply: what became of each, likewise.

--! include accept.lua

return outcomes
