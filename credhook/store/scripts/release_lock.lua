-- Delete a key, unless it is another's by now.
--
-- KEYS: the key.
-- ARGV: the value that it had when it was ours.
-- Reply: how many were deleted.

if redis.pcall('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
