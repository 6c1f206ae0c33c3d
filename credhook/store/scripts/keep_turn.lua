-- Take the turn to export what all share, or keep it: it is free once its holder has not kept it for a while.
--
-- KEYS: the turn.
-- ARGV: who asks; ms that the turn lasts unless it is kept.
-- Reply: 1 if it is the asker's turn now, else 0.

local turn, asker, lasts = KEYS[1], ARGV[1], tonumber(ARGV[2])
local holder, left = redis.pcall('GET', turn), redis.call('PTTL', turn)
-- What is of another type, or would stay for longer than any turn, somebody else has written.
local held = type(holder) == 'string' and holder ~= asker and left >= 0 and left <= lasts
if held then return 0 end
redis.call('SET', turn, asker, 'PX', lasts)
return 1
