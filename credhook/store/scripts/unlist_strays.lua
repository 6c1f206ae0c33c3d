-- Take events from a stream of listed events, and the sorted set beside it, whose records no longer say where they are.
--
-- KEYS: the stream, the sorted set.
-- ARGV: from which entry on, how many to look at; then the webhook-ids.
-- Reply: the entry to go on from, or '' at the end.

--! include unless_odd.lua

local stream, late = unpack(KEYS)
local most, wanted = tonumber(ARGV[2]), {}
for i = 3, #ARGV do
    wanted[ARGV[i]] = true
    unless_odd('ZREM', late, ARGV[i])
end
local entries = unless_odd('XRANGE', stream, ARGV[1], '+', 'COUNT', most) or {}
for _, entry in ipairs(entries) do
    if wanted[string.sub(entry[2][2], 2)] then redis.call('XDEL', stream, entry[1]) end
end
if #entries < most then
    if unless_odd('XLEN', stream) == 0 then redis.call('DEL', stream) end
    return ''
end
return '(' .. entries[#entries][1]
