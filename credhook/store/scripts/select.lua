-- Which events are meant by a selection, of those named or of those that came within a span of time.
--
-- What does not belong to a selection is left out here, so that looking through many events for few costs no round trip
-- for each page of them.
--
-- KEYS: as in keys.lua; streams of listed events, then sorted sets of such; or sorted sets of states; none if events are named.
-- ARGV: what is meant, as JSON; then the webhook-ids, each followed by a time for where its record says none.
--   Fields of the former: `streams`, how many of the KEYS are; `from` and `until`, the span of time, in ms, the end not
--   included; `most`, how many events to look at, or 0; `types`, `states`, `sets`, `resource`, `handler`, or null where
--   they do not matter, `sets` being the sorted sets of which one holds the event; `skip`, ids that are looked for
--   elsewhere; `moved`, whether the KEYS hold events by when they moved, so that the span says nothing of when they
--   came, and an event may be in several; `counting`, whether numbers are wanted; `forgotten`, whether what has no
--   record counts, with neither state nor type.
-- Reply: how many events were looked at, or -1 if the span holds more than `most`; then of each event that is meant
--   webhook-id, type, state and time, or if counting of each state and type these and the number of events.

--! include listed.lua
--! include readable.lua
--! include unless_odd.lua

local what = cjson.decode(ARGV[1])
local function given(value) return value ~= cjson.null and value or nil end
local types, wanted, resource_wanted = given(what.types), given(what.states), given(what.resource)
local sets, handler = given(what.sets), given(what.handler)
local from, until_, most = what.from, what['until'], what.most
local mark = resource_wanted and select(2, place_of('', resource_wanted))
local candidates, times, looked = {}, {}, 0

-- The time is one in ms, or the id of an entry, which begins with one.
local function add(id, time)
    if times[id] or what.skip[id] then return end
    candidates[#candidates + 1], times[id] = id, time
end

local function listed_at(id)
    return tonumber(string.match(times[id], '^%d+') or 0)  -- Somebody else may have written what is no time.
end

local function is_in_one_of(sets, first, last, id)
    for i = first, last do
        if unless_odd('ZSCORE', sets[i], id) then return true end
    end
    return false
end

-- Collect what came within the span. Returns false if it is more than `most`.
local function collect()
    local last, first = string.format('%.0f', until_ - 1 + $LAG), string.format('%.0f', from)
    local before = string.format('(%.0f', until_)
    local lowest = from > 0 and first or '-inf'
    local function left() return most > 0 and most - looked + 1 or -1 end
    for i = 2, #KEYS do
        local key = KEYS[i]
        if i <= what.streams + 1 then
            local entries
            if most > 0 then entries = unless_odd('XRANGE', key, first, last, 'COUNT', left())
            else entries = unless_odd('XRANGE', key, first, last) end
            for _, entry in ipairs(entries or {}) do
                looked = looked + 1
                local listed = entry[2][2]
                if not mark or string.sub(listed, 1, 1) == mark then
                    add(string.sub(listed, 2), entry[1])
                end
            end
        else
            local listed = unless_odd('ZRANGEBYSCORE', key, lowest, before, 'WITHSCORES', 'LIMIT', 0, left()) or {}
            for n = 1, #listed, 2 do
                local id, time = listed[n], listed[n + 1]
                looked = looked + 1
                -- One that moves from a state to another may be in both sets: it is taken from the first of them.
                if not (what.moved and is_in_one_of(KEYS, 2, i - 1, id)) then add(id, time) end
            end
        end
        if most > 0 and looked > most then return false end
    end
    return true
end

local function has_word(words, word)
    return words and string.find(' ' .. words .. ' ', ' ' .. word .. ' ', 1, true)
end

-- Whether the handler has ended for the event, or is waited for. Of most it has not: the rest is not asked for then.
local function concerns_handler(id)
    local ended, only, pending = unpack(unless_odd('HMGET', EVENT .. id, $HANDLER .. handler, $ONLY, $PENDING) or {})
    return ended or has_word(only, handler) or has_word(pending, handler)
end

-- Type, state and time of the event if it is meant. One whose record cannot be read is unreadable, whatever it says.
local function meant(id)
    if handler and not concerns_handler(id) then return nil end
    if sets and not is_in_one_of(sets, 1, #sets, id) then return nil end
    local record = unless_odd('HMGET', EVENT .. id, 'type', 'state', 'received', 'resource')
    local type, state, received, resource = unpack(record or {})
    if record and not (type or state or received or resource) then  -- It has expired, or was erased.
        local time = listed_at(id)
        if what.forgotten and time >= from and time < until_ then return '', '', time end
        return nil
    end
    local is_time = is_count(received) and tonumber(received) <= $LATEST
    local sound = type and type ~= '' and states[state or ''] and resource
    if not (sound and (is_time or not received or received == '')) then
        state = $UNREADABLE
    end
    local time = is_time and tonumber(received) or listed_at(id) or 0
    if not what.moved and (time < from or time >= until_) then return nil end
    if wanted and not wanted[state] or types and not types[type or ''] then return nil end
    if resource_wanted and resource ~= resource_wanted then return nil end
    return type or '', state, time
end

for i = 2, #ARGV, 2 do
    looked = looked + 1
    add(ARGV[i], ARGV[i + 1])
end
if #KEYS > 1 and not collect() then return {-1} end
local reply, counts = {looked}, {}
for _, id in ipairs(candidates) do
    local type, state, time = meant(id)
    if type and what.counting then
        counts[state] = counts[state] or {}
        counts[state][type] = (counts[state][type] or 0) + 1
    elseif type then
        for _, part in ipairs({id, type, state, string.format('%.0f', time)}) do reply[#reply + 1] = part end
    end
end
for state, by_type in pairs(counts) do
    for type, number in pairs(by_type) do
        for _, part in ipairs({state, type, number}) do reply[#reply + 1] = part end
    end
end
return reply
