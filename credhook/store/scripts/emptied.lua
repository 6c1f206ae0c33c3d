-- Note that Redis has lost all data of the queue: its mark is gone.
--
-- The mark is a text that never changes. Each process remembers it, and how many events were not done.
--
-- ARGV: the mark that the queue gets if it has none; number of events that were not done when the mark was last
--   seen.
-- Reply: the queue's mark; 1 if this process is the first to miss the earlier mark, else 0.

--! include vanished.lua

local mark = redis.call('GET', prefix .. 'mark')
if mark then return {mark, 0} end
redis.call('SET', prefix .. 'mark', ARGV[1])
if ARGV[2] ~= '0' then note_losses(ARGV[2]) end
return {ARGV[1], 1}
