-- The causes of failures, a hash for each cause, and the history of each event.
--
-- An event's record names its open causes. To count the events of a cause, read the records: nothing is counted here.
-- An event can be worked on without causes and histories: callers ignore errors, which lose only the text.

--! include keys.lua
--! include expiring.lua

-- Append an entry, an object in JSON, to the event's history. It then lasts `seconds`, as the record of a settled event.
local function append(id, entry, seconds)
    local key = HISTORY .. id
    write_expiring(key, 1000 * (seconds or $LONGEST_WAIT), 'RPUSH', string.format('%.0f ', now) .. entry)
    redis.call('LTRIM', key, -$HISTORY_ENTRIES, -1)
end

-- Describe the cause of a failure, unless its description is there. Fields of a failure: `id` of the cause; `who`, `what`,
-- `at` and `version`, as people read them.
local function describe(failure, retention)
    local key, lasts = CAUSE .. failure.id, 1000 * math.max(retention, $LONGEST_WAIT)
    if redis.call('PEXPIRE', key, lasts) == 1 then return end
    write_expiring(key, lasts, 'HSET', 'who', failure.who, 'what', failure.what, 'at', failure.at,
                   'version', failure.version, 'first', now_text)
end
