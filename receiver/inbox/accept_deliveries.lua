-- Accept a group of deliveries.
--
-- KEYS: as in credhook/ledger/accept.lua.
-- ARGV: likewise.
-- Reply: what became of each, likewise.

--! include credhook.ledger/accept.lua

return outcomes
