-- Evidence of events that were acknowledged and whose records are gone, though nothing of ours has removed them.
--
-- `vanished` is a sorted set: webhook-id -> when it was missed, in ms. `losses` is a hash: `count`, and `first` and `last`,
-- the times of the first and the last loss, in ms; and `mark`, the last mark that was lost, see emptied.lua.

--! include keys.lua
--! include expiring.lua

local KEPT = 259200000  -- Ms that the evidence is kept after the last loss.
local MOST_IDS = 1000  -- Ids that are kept. Further ones are counted.

-- Note that so many events are lost. `...`: further fields, written by the same command: a call that is cut counts nothing.
local function note_losses(count, ...)
    local losses = prefix .. 'losses'
    local before, first = unpack(redis.call('HMGET', losses, 'count', 'first'))
    count = string.format('%.0f', (before or 0) + count)
    write_expiring(losses, KEPT, 'HSET', 'count', count, 'first', first or now_text, 'last', now_text, ...)
end

-- Note that this event's record is gone. An event is counted once.
local function note_vanished(id)
    local vanished = prefix .. 'vanished'
    if write_expiring(vanished, KEPT, 'ZADD', now, id) == 0 then return end
    redis.call('ZREMRANGEBYRANK', vanished, 0, -1 - MOST_IDS)
    note_losses(1)
end
