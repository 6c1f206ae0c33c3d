-- Accept a group of events that no delivery has brought, those of one resource in the order of its states.
--
-- KEYS: as in keys.lua.
-- ARGV: as in accept.lua.
-- Reply: what became of each event; see there.

--! include accept.lua

return outcomes
