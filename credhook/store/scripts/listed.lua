-- The lists of events in the order in which they came; see `LISTED` and `LATE` in credhook/store.
--
-- Each event is in one of the two keys of its place: in the stream if an entry fits there at the event's time, else in
-- the sorted set. No key of another type, and no clock that was set, keeps an event from being accepted.
--
-- Defines: place_of, list_new, list_missing, unlist.

--! include keys.lua
--! include readable.lua
--! include unless_odd.lua

local listed_types = $EVENT_TYPES

-- What follows the prefixes of the two keys; and what stands before the webhook-id in the stream: a character that
-- tells most resources of one bucket apart, so that not every record has to be looked at for the events of one.
local function place_of(type, resource)
    local digest = redis.sha1hex(resource)
    local bucket = tonumber(string.sub(digest, 1, 2), 16) % $BUCKETS
    return (listed_types[type] and type or $OTHER) .. ':' .. bucket, string.sub(digest, 3, 3)
end

-- List an event that has come just now; `received` is a text.
local function list_new(place, mark, id, received)
    local entry = redis.pcall('XADD', LISTED .. place, '*', 'i', mark .. id)
    if type(entry) == 'string' then
        if string.sub(entry, 1, #received) == received then return end
        local behind = tonumber(string.match(entry, '^%d+')) - received
        if behind >= 0 and behind <= $LAG then return end
        redis.call('XDEL', LISTED .. place, entry)
    elseif not (string.find(entry.err, 'WRONGTYPE', 1, true) or string.find(entry.err, 'exhausted', 1, true)) then
        error(entry.err, 0)
    end
    unless_odd('ZADD', LATE .. place, received, id)
end

-- The event's entries in its stream: one, or two if its acceptance was once broken off.
local function entries_of(place, id, received)
    local found = {}
    local near = unless_odd('XRANGE', LISTED .. place, received, string.format('%.0f', received + $LAG))
    for _, entry in ipairs(near or {}) do
        if string.sub(entry[2][2], 2) == id then found[#found + 1] = entry[1] end
    end
    return found
end

-- List an event that may have been accepted by somebody who does not list events. Returns 1 if it was not listed.
local function list_missing(place, id, received)
    if #entries_of(place, id, received) > 0 then return 0 end
    return unless_odd('ZADD', LATE .. place, received, id) or 0
end

-- List the event no longer.
local function unlist(place, id, received)
    local entries = entries_of(place, id, received)
    if #entries > 0 then
        redis.call('XDEL', LISTED .. place, unpack(entries))
        if redis.call('XLEN', LISTED .. place) == 0 then redis.call('DEL', LISTED .. place) end
    end
    unless_odd('ZREM', LATE .. place, id)
end
