-- Take tokens from the bucket that limits the rate of calls, or give some back: the generic cell rate algorithm.
--
-- One number says how full the bucket is: when it will be full again. If somebody would have to wait for longer than
-- anybody may, that number is not ours, and the bucket counts as full.
--
-- KEYS: bucket.
-- ARGV: tokens wanted, negative to give some back; then in microseconds: the time in which one token grows; the time in
--   which the bucket fills; how long the caller would wait if there is none; how long anybody would.
-- Reply: how many were taken; microseconds until the token to be waited for, or the next one, is there; 1 if the bucket
--   could not be read, else 0.

local bucket, longest = KEYS[1], ARGV[5]
local wanted, each, depth, patience = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local found = redis.pcall('GET', bucket)
if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then return found end
local full, unreadable = tonumber(found or 0), 0
if not (full and full >= 0 and full <= now + depth + longest) then full, unreadable = 0, 1 end
full = math.max(now, full)
local taken = math.min(wanted, math.max(0, math.floor((now + depth - full) / each + 0.001)))
local wait = 0
if taken == 0 then
    wait = math.ceil(full + each - depth - now)
    if wait <= patience then taken = 1 end
end
if taken ~= 0 then
    full = math.max(now, full + taken * each)
    if taken > 0 and taken < wanted then wait = math.ceil(full + each - depth - now) end
    redis.call('SET', bucket, string.format('%.0f', full), 'PX', math.max(1, math.ceil((full - now) / 1000)))
end
return {taken, wait, unreadable}
