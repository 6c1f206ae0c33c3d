-- Add a member to a set that expires.
--
-- KEYS: set.
-- ARGV: member, ms that the set lasts from now on.

--! include expiring.lua

write_expiring(KEYS[1], ARGV[2], 'SADD', ARGV[1])
