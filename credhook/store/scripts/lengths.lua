-- How many events are listed under each of some keys.
--
-- KEYS: streams, then as many sorted sets.
-- Reply: of each that is such, and is not empty, its name and the number.

--! include unless_odd.lua

local reply = {}
for i, key in ipairs(KEYS) do
    local number = unless_odd(i * 2 <= #KEYS and 'XLEN' or 'ZCARD', key)
    if number and number > 0 then
        reply[#reply + 1] = key
        reply[#reply + 1] = number
    end
end
return reply
