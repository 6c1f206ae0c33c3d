-- How many calls a platform may get: the fleet's pause, the pace after a refusal, and the token bucket.
--
-- The keys begin with the platform's key, see worker/platform/limits.py:
--   :pause    "<ms> <cause>"; expires with the pause
--   :pace     "<ms> <calls per second>" that passed before the platform answered 429; expires when it limits nothing
--   :bucket   when the bucket will be full again, in microseconds (generic cell rate algorithm)
--
-- Redis's clock may be set back. A pause and a pace therefore hold their own length, and the bucket is never
-- emptier than a call may wait for.

-- Tokens are spaced wider than the rate asks, by this factor, so that no second holds more tokens than the rate. A
-- platform that counts the calls of each second would refuse the others. The factor also covers the network's jitter.
local SPARE = 1.05
-- Microseconds in which an empty bucket fills. It holds one token at least.
local BURST = 50000
-- The pace after a refusal is a curve like that of TCP CUBIC. It begins lower than what passed, by this part.
local PACE_DROP = 0.3
-- Ms after the pause in which the pace returns to what passed. It is slow near that value, and fast beyond it.
local PACE_RETURNS = 30000
-- Ms after the pause that the pace is remembered. By then it is 2,000 times what passed.
local PACE_LASTS = 600000
-- Calls per second that a pace begins with at least. A platform that refuses everything would drive it to 0.
local SLOWEST_PACE = 1

-- Return the ms that a key has left, or 0, and the word that it holds.
local function lasting(key)
    local length, word = string.match(redis.call('GET', key) or '', '^(%d+) (%S+)$')
    if not length then return 0 end
    local left = redis.call('PTTL', key)
    if left < 0 or left > tonumber(length) then
        left = tonumber(length)
        redis.call('PEXPIRE', key, left)
    end
    return left, word
end

-- Write a key that lasts so many ms. Write although Redis is full: it allows a script everything after its first write.
local function write_lasting(key, ms, word)
    redis.call('PERSIST', key)
    redis.call('SET', key, ms .. ' ' .. word, 'PX', ms)
end

-- Return the calls per second that are allowed now, or nil without a limit. `rate`: CREDHOOK_RATE, or 0.
local function allowed_rate(platform, rate)
    local allowed = rate > 0 and rate / SPARE or nil
    local left, passed = lasting(platform .. ':pace')
    if left > 0 then
        local progress = math.max(0, PACE_LASTS - left) / PACE_RETURNS - 1
        local pace = passed * (1 + PACE_DROP * progress ^ 3)
        if not allowed or pace < allowed then allowed = pace end
    end
    return allowed
end

-- Return the token bucket at this moment, or nil without a limit. `now`, and `longest` that a call may wait for a
-- token, are in microseconds.
local function bucket_of(platform, rate, longest, now)
    local allowed = allowed_rate(platform, rate)
    if not allowed then return nil end
    local interval = 1000000 / allowed
    local bucket = {key = platform .. ':bucket', interval = interval, capacity = math.max(interval, BURST)}
    local full = tonumber(redis.call('GET', bucket.key) or 0) or 0
    bucket.full = math.max(now, math.min(full, now + bucket.capacity + longest))
    return bucket
end

-- Return the ms that the platform is paused for, and the token bucket, or nil without a limit. See `bucket_of`.
local function limits_of(platform, rate, longest, now)
    -- Most platforms have neither a pause nor a limit, and one command finds that out.
    if rate == 0 and redis.call('EXISTS', platform .. ':pause', platform .. ':pace') == 0 then return 0, nil end
    local pause = lasting(platform .. ':pause')
    return pause, bucket_of(platform, rate, longest, now)
end

-- Return how many tokens the bucket holds.
local function tokens_in(bucket, now)
    return math.max(0, math.floor((now + bucket.capacity - bucket.full) / bucket.interval + 0.001))
end

-- Return the microseconds until the bucket holds a token.
local function wait_for_token(bucket, now)
    return math.max(0, math.ceil(bucket.full + bucket.interval - bucket.capacity - now))
end

-- Take tokens, also before they are there. A negative number gives tokens back.
local function take_tokens(bucket, count, now)
    bucket.full = math.max(now, bucket.full + count * bucket.interval)
    local lasts = math.max(1, math.ceil((bucket.full - now) / 1000))
    redis.call('PERSIST', bucket.key)
    redis.call('SET', bucket.key, string.format('%.0f', bucket.full), 'PX', lasts)
end

-- Take a token for one call, or reserve the next one if it will be there in time. Return 1 if the call has a token, and
-- the microseconds until the call may be sent or until there is a token.
local function take_call(bucket, longest, now)
    local wait = wait_for_token(bucket, now)
    if wait > longest then return 0, wait end
    take_tokens(bucket, 1, now)
    return 1, wait
end

-- Pause the platform for so many ms, unless its pause lasts longer. After a 429, begin a pace.
--
-- `estimate`: calls per second that have passed, as far as the caller knows; `rate`: CREDHOOK_RATE, or 0.
-- Return the ms that the platform was paused for already, and the calls per second that have passed, or ''.
local function pause_platform(platform, ms, cause, estimate, rate)
    local before = lasting(platform .. ':pause')
    if ms <= before then return before, '' end
    local left, passed = lasting(platform .. ':pace')
    if before == 0 or left == 0 then
        local most = math.min(estimate, allowed_rate(platform, rate) or estimate)
        passed = string.format('%.3f', math.max(SLOWEST_PACE, most))
    end
    write_lasting(platform .. ':pause', ms, cause)
    if cause ~= '429' then return before, '' end
    write_lasting(platform .. ':pace', ms + PACE_LASTS, passed)
    return before, passed
end
