-- Replace the circuit if it is still the one that the caller has seen, and tell everybody; or only look at it.
--
-- Redis's time is added to the text of each circuit, so that no change between two looks goes unnoticed.
--
-- KEYS: circuit, probe. The circuit's key is the channel as well.
-- ARGV: the circuit that the caller has seen, or '?' to look only; the new one, or '' for none; its TTL in ms; whose
--   probe is over, or ''; most bytes of a circuit that are read; what to say of a key of another type, which can be
--   replaced like a circuit of that text.
-- Reply: Redis's time in microseconds, as text; the circuit that stands there now; 1 if it is the new one, else 0.

local circuit, probe = unpack(KEYS)
local seen, new, ttl, prober, most_bytes, of_another_type = unpack(ARGV)
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local current = redis.pcall('GETRANGE', circuit, 0, most_bytes)
if type(current) == 'table' then
    if not string.find(current.err, 'WRONGTYPE', 1, true) then return current end
    current = of_another_type
end
if prober ~= '' and redis.pcall('GET', probe) == prober then redis.call('DEL', probe) end
if current ~= seen then return {now, current, 0} end
if new == '' then
    redis.call('DEL', circuit)
    current = ''
else
    current = new .. ' ' .. now
    redis.call('SET', circuit, current, 'PX', ttl)
end
redis.call('PUBLISH', circuit, now .. ' ' .. current)
return {now, current, 1}
