-- The causes of failures, a hash for each cause and a sorted set of the events in which it is not resolved; and the
-- history of each event.
--
-- An event can be worked on without them: callers ignore errors, which lose only the count or the entry.

--! include keys.lua
--! include expiring.lua

-- Append an entry, an object in JSON, to the event's history. It then lasts `seconds`, as the record of a settled event.
local function append(id, entry, seconds)
    local key = HISTORY .. id
    write_expiring(key, 1000 * (seconds or $LONGEST_WAIT), 'RPUSH', string.format('%.0f ', now) .. entry)
    redis.call('LTRIM', key, -$HISTORY_ENTRIES, -1)
end

-- Count a failure with its cause. Its fields: `id`, of the cause; `who`, `what`, `at` and `version`, as they are shown.
local function count_failure(failure, retention)
    local key, lasts = causes .. ':' .. failure.id, 1000 * math.max(retention, $LONGEST_WAIT)
    if write_expiring(causes, lasts, 'ZADD', now, failure.id) == 1 then
        redis.call('ZREMRANGEBYSCORE', causes, '-inf', now - lasts)
        for _, silent in ipairs(redis.call('ZRANGE', causes, 0, -1 - $MOST_CAUSES)) do
            redis.call('UNLINK', causes .. ':' .. silent, causes .. ':' .. silent .. ':events')
            redis.call('ZREM', causes, silent)
        end
    end
    write_expiring(key, lasts, 'HSET', 'who', failure.who, 'what', failure.what, 'at', failure.at, 'version', failure.version)
    redis.call('HSETNX', key, 'first', now)
    redis.call('HSETNX', key, 'since', failure.version)
    redis.call('HINCRBY', key, 'failures', 1)
end

-- List the event under the cause, with a score below 0 while it is open. This goes before the record names the cause: the
-- sweeper removes entries that no record confirms, and would not find events that lack theirs.
local function add_open_error(id, cause, is_open, retention)
    local lasts = 1000 * math.max(retention, $LONGEST_WAIT)
    write_expiring(causes .. ':' .. cause .. ':events', lasts, 'ZADD', is_open and -now or now, id)
end

local function remove_open_error(id, cause)
    redis.call('ZREM', causes .. ':' .. cause .. ':events', id)
end

-- Count a failure and list the event under its cause, in place of the earlier cause of the same handler.
local function record_failure(id, failure, is_open, retention)
    local before = redis.call('HGET', EVENT .. id, $BLAMED .. failure.who)
    count_failure(failure, retention)
    add_open_error(id, failure.id, is_open, retention)
    redis.call('HSET', EVENT .. id, $BLAMED .. failure.who, failure.id)
    if before and before ~= failure.id then remove_open_error(id, before) end
end

-- Remove the event from its causes, but for those of handlers that stay given up.
local function resolve(id)
    local ended = by_field(redis.call('HGETALL', EVENT .. id))
    for field, cause in pairs(ended) do
        if string.sub(field, 1, #$BLAMED) == $BLAMED then
            local how = ended[$HANDLER .. string.sub(field, #$BLAMED + 1)] or ''
            if string.sub(how, 1, #$GAVE_UP) == $GAVE_UP then
                redis.call('ZADD', causes .. ':' .. cause .. ':events', 'XX', -now, id)
            else
                redis.call('HDEL', EVENT .. id, field)
                remove_open_error(id, cause)
            end
        end
    end
end
