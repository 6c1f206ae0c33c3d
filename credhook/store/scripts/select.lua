-- Read those of some events that match a filter.
--
-- ARGV: the filter as JSON, see filter.lua; then each event's webhook-id, and the time in ms that counts if its record
--   does not say when it was received.
-- Reply: of each event that matches webhook-id, type, state and entry in by_time.

--! include filter.lua

local filter, reply = cjson.decode(ARGV[1]), {}
for i = 2, #ARGV, 2 do
    reply[#reply + 1] = matched(filter, ARGV[i], ARGV[i + 1])
end
return reply
