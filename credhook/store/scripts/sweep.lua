-- Remove entries that no record confirms from the index or a list of settled events, a bounded number at a time.
--
-- KEYS: as in keys.lua; then by_time or a sorted set.
-- ARGV: where to go on: an entry of by_time, or a rank of a sorted set; how many entries to look at; ms before which an
--   event was received whose record may have expired.
-- Reply: where to go on, or '' after the last entry.

--! include index.lua

-- List -> states of its events. An unreadable record may have been repaired by hand, so that list is left alone.
local states_of = {[dead] = {[$DEAD] = true, [$DATA_GONE] = true}, [quarantined] = {[$QUARANTINED] = true}}
for type in pairs(known_types) do states_of[unhandled .. type] = {[$UNHANDLED] = true} end

local function sweep_index(start, count, before)
    local last = redis.call('XREVRANGE', by_time, '+', '-', 'COUNT', 1)[1]
    -- Redis's clock was set back, so the times of entries say nothing.
    if last and tonumber(ms_of(last[1])) > now then before = '+' end
    local entries, gone = redis.call('XRANGE', by_time, start, before, 'COUNT', count), {}
    for _, entry in ipairs(entries) do
        local record = if_hash('HMGET', EVENT .. entry[2][2], 'received', 'place')
        local leads_to = record and entry_of(unpack(record, 1, 2))
        local is_gone = leads_to and leads_to ~= entry[1]
        if not leads_to then is_gone = redis.call('EXISTS', EVENT .. entry[2][2]) == 0 end
        if is_gone then gone[#gone + 1] = entry[1] end
    end
    if #gone > 0 then
        redis.call('ZREM', by_resource, unpack(gone))
        redis.call('XDEL', by_time, unpack(gone))  -- Last, so that a sweep that was cut finds them again.
    end
    return #entries == count and '(' .. entries[count][1] or ''
end

local function sweep_list(list, start, count)
    local ids, gone = redis.call('ZRANGE', list, start, start + count - 1), {}
    for _, id in ipairs(ids) do
        local record = if_hash('HMGET', EVENT .. id, 'state')
        if record and not states_of[list][record[1] or ''] then gone[#gone + 1] = id end
    end
    if #gone > 0 then redis.call('ZREM', list, unpack(gone)) end
    return #ids == count and start + count - #gone or ''
end

if KEYS[2] == by_time then return sweep_index(ARGV[1], tonumber(ARGV[2]), ARGV[3]) end
return sweep_list(KEYS[2], tonumber(ARGV[1]), tonumber(ARGV[2]))
