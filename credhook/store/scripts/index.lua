-- The index of events, by time and by resource.
--
-- by_time is a stream of webhook-ids, in the order in which Redis accepted the events. Redis gives each entry its id,
-- `<ms>-<number>`. by_resource is a sorted set of these ids, scored by a digest of the event's resource.
--
-- The record leads back to its entry: `received` has the ms, and `place` the number unless it is 0. If both differ, as
-- after Redis's clock was set back, `place` is the entry's whole id. An entry whose event has no record, or a record
-- that leads to another entry, counts for nothing: its acceptance or its erasure was cut, or the record has expired. The
-- sweeper removes such entries after the retention time, and a repeated erasure does so at once.

--! include keys.lua
--! include expiring.lua

local RUNS_FOR = 1000  -- Ms by which Redis's clock may advance while a script runs.

-- Return the score of a resource in by_resource. `Keys.resource_score` returns the same.
local function score_of(resource)
    return tonumber(string.sub(redis.sha1hex(resource), 1, 13), 16)
end

-- Return the id of the entry to which these fields of a record lead, or nil if they lead nowhere.
local function entry_of(received, place)
    if not received or not string.find(received, '^%d+$') then return nil end
    if place and string.find(place, '-', 1, true) then return place end
    return received .. '-' .. (place or '0')
end

-- Append an event to by_time. Return the entry's id, the time of receipt in ms, and the record's `place` or nil.
local function append_entry(id)
    local entry = redis.call('XADD', by_time, '*', 'event', id)
    local ms, number = string.match(entry, '^(%d+)%-(%d+)$')
    if ms - now < 0 or ms - now > RUNS_FOR then return entry, now_text, entry end
    return entry, ms, number ~= '0' and number or nil
end

-- Return the ms of an entry.
local function ms_of(entry)
    return string.match(entry, '^%d+')
end

-- Return up to `most` entries of a resource, the latest first, after the first `skipped`. They stand in the order of their
-- ms, and those of one ms in the order of their text.
local function entries_of(resource, most, skipped)
    local score = score_of(resource)
    return redis.call('ZRANGE', by_resource, score, score, 'BYSCORE', 'REV', 'LIMIT', skipped or 0, most)
end

-- Return true if an event of the resource came after this entry, or if its last 100 entries do not tell.
local function has_later(resource, entry)
    local ms, number = string.match(entry, '^(%d+)%-(%d+)$')
    local listed = entries_of(resource, 100)
    for _, other in ipairs(listed) do
        local later, place = string.match(other, '^(%d+)%-(%d+)$')
        later = later - ms
        if later < 0 then return false end
        if later > 0 or place - number > 0 then return true end
    end
    return #listed == 100
end
