-- Take from streams of listed events what is older than a given time.
--
-- Most of these events have been forgotten by then. Those that have not (open for long, or settled late) stay listed in
-- the sorted set beside the stream, so that nobody has to look at them again in each round.
--
-- KEYS: as in keys.lua; a stream and the sorted set beside it, for each place.
-- ARGV: entries that are older than this go, in ms; how many to look at.
-- Reply: how many were taken; then each of the keys that is of another type than ours.

--! include keys.lua
--! include readable.lua
--! include unless_odd.lua

local before, left = ARGV[1] - 1, tonumber(ARGV[2])
local reply = {0}

local function keep_if_remembered(id, late)
    local received = unless_odd('HGET', EVENT .. id, 'received')
    if is_count(received) then unless_odd('ZADD', late, received, id) end
end

for i = 2, #KEYS, 2 do
    local stream, late = KEYS[i], KEYS[i + 1]
    local old = unless_odd('XRANGE', stream, '-', string.format('%.0f', before), 'COUNT', left)
    if not old then reply[#reply + 1] = stream end
    if not unless_odd('ZCARD', late) then reply[#reply + 1] = late end
    if old and #old > 0 then
        local entries = {}
        for _, entry in ipairs(old) do
            keep_if_remembered(string.sub(entry[2][2], 2), late)
            entries[#entries + 1] = entry[1]
        end
        redis.call('XDEL', stream, unpack(entries))
        if redis.call('XLEN', stream) == 0 then redis.call('DEL', stream) end
        reply[1] = reply[1] + #old
        left = left - #old
    end
    if left <= 0 then break end
end
return reply
