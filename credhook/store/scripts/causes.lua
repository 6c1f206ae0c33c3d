-- Why attempts fail, counted: a hash for each cause, and a sorted set of the events that stand with it now.
--
-- An event can be worked on without its causes: callers ignore errors, which lose only the count.
--
-- Defines: blame, stand, stands_no_more, fail, absolve.

--! include keys.lua
--! include by_field.lua
--! include now.lua

-- Seconds that a cause is remembered at least: the longest wait for which a handler may ask.
local LONGEST_WAIT = 604800

-- Count a failure with its cause. Its fields: `id`, of the cause; `who`, `what`, `at` and `version`, as they are shown.
local function blame(causes, failure, retention)
    local key, lasts = causes .. ':' .. failure.id, math.max(retention, LONGEST_WAIT)
    if redis.call('ZADD', causes, now, failure.id) == 1 then
        redis.call('ZREMRANGEBYSCORE', causes, '-inf', now - lasts * 1000)
        for _, silent in ipairs(redis.call('ZRANGE', causes, 0, -1 - $MOST_CAUSES)) do
            redis.call('UNLINK', causes .. ':' .. silent, causes .. ':' .. silent .. ':events')
            redis.call('ZREM', causes, silent)
        end
    end
    redis.call('EXPIRE', causes, lasts)
    redis.call('HSET', key, 'who', failure.who, 'what', failure.what, 'at', failure.at, 'version', failure.version)
    redis.call('HSETNX', key, 'first', now)
    redis.call('HSETNX', key, 'since', failure.version)
    redis.call('HINCRBY', key, 'failures', 1)
    redis.call('EXPIRE', key, lasts)
end

-- Have the event stand with the cause, given up or still open. Events whose records have expired are removed later.
local function stand(causes, id, cause, is_open, retention)
    local key, lasts = causes .. ':' .. cause .. ':events', math.max(retention, LONGEST_WAIT)
    redis.call('ZADD', key, is_open and -now or now, id)
    redis.call('ZREMRANGEBYSCORE', key, lasts * 1000 - now, now - lasts * 1000)
    redis.call('EXPIRE', key, lasts)
end

local function stands_no_more(causes, id, cause)
    redis.call('ZREM', causes .. ':' .. cause .. ':events', id)
end

-- Count a failure, and have the event stand with its cause, in place of the one with which the same has failed before.
local function fail(causes, id, failure, is_open, retention)
    local before = redis.call('HGET', EVENT .. id, $BLAMED .. failure.who)
    if before and before ~= failure.id then stands_no_more(causes, id, before) end
    redis.call('HSET', EVENT .. id, $BLAMED .. failure.who, failure.id)
    blame(causes, failure, retention)
    stand(causes, id, failure.id, is_open, retention)
end

-- Take the event from the causes that it stands with: from all, or, while it is open, from all save those of handlers
-- that stay given up.
local function absolve(causes, id, all)
    local ended = by_field(redis.call('HGETALL', EVENT .. id))
    for field, cause in pairs(ended) do
        if string.sub(field, 1, #$BLAMED) == $BLAMED then
            local how = ended[$HANDLER .. string.sub(field, #$BLAMED + 1)] or ''
            if not all and string.sub(how, 1, #$GAVE_UP) == $GAVE_UP then
                redis.call('ZADD', causes .. ':' .. cause .. ':events', 'XX', -now, id)
            else
                stands_no_more(causes, id, cause)
                redis.call('HDEL', EVENT .. id, field)
            end
        end
    end
end
