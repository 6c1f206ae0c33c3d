-- Take tokens from the bucket that limits the rate of calls, or give some back (generic cell rate algorithm).
--
-- The bucket is one number: the time in microseconds when it will be full again.
--
-- KEYS: bucket.
-- ARGV: tokens wanted, negative to give some back; then in microseconds: interval between two tokens; time in which the
--   bucket fills; longest wait for a token that is not there yet.
-- Reply: tokens taken; microseconds until the reserved or the next token is there.

local bucket = KEYS[1]
local wanted, interval, capacity, max_wait = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.max(now, tonumber(redis.call('GET', bucket) or 0))
local taken = math.min(wanted, math.max(0, math.floor((now + capacity - full) / interval + 0.001)))
local wait = 0
if taken == 0 then
    wait = math.ceil(full + interval - capacity - now)
    if wait <= max_wait then taken = 1 end
end
if taken ~= 0 then
    full = math.max(now, full + taken * interval)
    if taken > 0 and taken < wanted then wait = math.ceil(full + interval - capacity - now) end
    redis.call('SET', bucket, string.format('%.0f', full), 'PX', math.max(1, math.ceil((full - now) / 1000)))
end
return {taken, wait}
