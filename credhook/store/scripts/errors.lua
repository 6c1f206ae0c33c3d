-- Read which of some events have open errors.
--
-- ARGV: webhook-ids, some hundred at most.
-- Reply: for each event with open errors a list: its place in ARGV, counted from 1; state; when it was settled, or last moved
--   while it is open, in ms; then who failed and the id of the cause, in turn.

--! include keys.lua

local reply = {}
for place, id in ipairs(ARGV) do
    local record = by_field(if_hash('HGETALL', EVENT .. id) or {})
    local at = record.settled or math.abs(redis.call('ZSCORE', open, id) or 0)
    local errors = {place, record.state or '', at}
    for field, cause in pairs(record) do
        if string.sub(field, 1, #$BLAMED) == $BLAMED then
            errors[#errors + 1], errors[#errors + 2] = string.sub(field, #$BLAMED + 1), cause
        end
    end
    if #errors > 3 then reply[#reply + 1] = errors end
end
return reply
