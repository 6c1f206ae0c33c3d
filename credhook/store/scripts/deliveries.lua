-- Read the deliveries of two weeks; see credhook/store/arrivals.py.
--
-- Reply: fields and values: those of `arrivals`, which the sweeper has summed up, and "m<minute>" → deliveries of each
--   later minute.

--! include keys.lua
--! include expiring.lua

local reply, hour = if_hash('HGETALL', prefix .. 'arrivals') or {}, math.floor(now / 3600000)
local first = hour - $TRAFFIC_HOURS + 1
for i = 1, #reply, 2 do
    local summed = tonumber(string.match(reply[i], '%d+$'))
    if summed and summed < hour then first = math.max(first, summed + 1) end
end
for later = first, hour do
    local fields, of_minute = if_hash('HGETALL', TRAFFIC .. later) or {}, {}
    for i = 1, #fields, 2 do
        local minute = string.match(fields[i], '^(%d+) arrived ')
        if minute then
            minute = 'm' .. later * 60 + minute
            of_minute[minute] = (of_minute[minute] or 0) + (tonumber(fields[i + 1]) or 0)
        end
    end
    for minute, deliveries in pairs(of_minute) do
        reply[#reply + 1], reply[#reply + 2] = minute, deliveries
    end
end
return reply
