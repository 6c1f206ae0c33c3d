-- Claim one event whose job an RQ worker has popped by itself. Such a worker has nothing else under way.
--
-- ARGV: webhook-id, job's id, lease in ms.
-- Reply: the claim, or the reason why there is none; see claim_event.lua.

--! include claim_event.lua

local worker = {lease = ARGV[3], alone = true}
local got = claim(ARGV[1], ARGV[2], worker)
if type(got) == 'table' then hold({got}, worker) end
return got
