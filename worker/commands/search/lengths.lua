-- How many events are listed under each of some keys.
--
-- KEYS: the keys.
-- Reply: of each key that is there, and of our type, its name and the number.

local reply = {}
for _, key in ipairs(KEYS) do
    local kind = redis.call('TYPE', key).ok
    local number
    if kind == 'stream' then number = redis.call('XLEN', key) end
    if kind == 'zset' then number = redis.call('ZCARD', key) end
    if number then
        reply[#reply + 1] = key
        reply[#reply + 1] = number
    end
end
return reply
