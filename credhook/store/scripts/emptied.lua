-- Note that Redis has lost all data of the queue: its mark is gone, or is another one.
--
-- The mark is a text that never changes. Each process remembers it, and how many events were not done. A process that does
-- not remember it may give the queue a new mark before the others look.
--
-- ARGV: the mark that the queue gets if it has none; the mark that this process remembers, or ''; number of events that
--   were not done when it was last seen.
-- Reply: the queue's mark; 1 if this process is the first to miss the mark that it remembers, else 0.

--! include vanished.lua

local mark, remembered = redis.call('GET', prefix .. 'mark'), ARGV[2]
if not mark then
    mark = ARGV[1]
    redis.call('SET', prefix .. 'mark', mark)
end
if remembered == '' or remembered == mark or ARGV[3] == '0' then return {mark, 0} end
if redis.call('HGET', prefix .. 'losses', 'mark') == remembered then return {mark, 0} end
note_losses(ARGV[3], 'mark', remembered)
return {mark, 1}
