-- Read the events of ranges of by_time that match a filter, newest first.
--
-- ARGV: the filter as JSON, see filter.lua; how many entries to look at; then for each range its newest and its oldest
--   entry, as XREVRANGE takes them.
-- Reply:
--   1 how many entries were looked at  2 the id of the last of them, or ''
--   3 of each event that matches webhook-id, type, state and entry in by_time

--! include filter.lua

local filter, left = cjson.decode(ARGV[1]), tonumber(ARGV[2])
local looked, last, events = 0, '', {}
for i = 3, #ARGV, 2 do
    for _, entry in ipairs(redis.call('XREVRANGE', by_time, ARGV[i], ARGV[i + 1], 'COUNT', left - looked)) do
        looked, last = looked + 1, entry[1]
        events[#events + 1] = matched(filter, entry[2][2], ms_of(last), last)
    end
    if looked >= left then break end
end
return {looked, last, events}
