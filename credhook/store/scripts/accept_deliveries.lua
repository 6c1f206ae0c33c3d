-- Accept a group of deliveries.
--
-- KEYS: as in keys.lua.
-- ARGV: as in accept.lua.
-- Reply: what became of each event; see there.

--! include accept.lua

return outcomes
