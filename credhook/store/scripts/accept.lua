-- Accept a group of events from deliveries or from a backfill: find duplicates, and write the record, index entry and
-- RQ job of each new event.
--
-- One command writes for all events where it can: each command costs Redis as much as an event does. The records come
-- last: if any command fails, an event without a record is accepted when it is sent again.
--
-- ARGV: '' for deliveries, or from a backfill the entry of by_time after which it has not looked; retention in s; number
--   of arguments of each event; number of job fields, then these fields and their values; then for each event webhook-id,
--   type, resource, the job's id or '' if the type is unknown or the id cannot be fetched, and the trace if there is a
--   fifth.
-- Reply: the outcome of each event: accepted, quarantined, duplicate, erased (it or its resource was erased: nothing is
--   written), conflict (seen before with another type or resource), unreadable (something else has written to its record), or changed (its resource may have had an event
--   since the backfill looked).

--! include index.lua
--! include enqueue.lua
--! include hints.lua
--! include erased.lua
--! include traffic.lua

-- The first events of a queue decide its schema.
if not schema then redis.call('SET', prefix .. 'schema', '$SCHEMA') end

local since, retention, each, fields = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local is_backfill = since ~= ''
local first = 5 + 2 * fields
local outcomes, fresh, records, ids, job_ids, urgent_jobs, entries = {}, {}, {}, {}, {}, {}, {}

-- An event is accepted from a delivery or from a backfill, but not from both. A backfill accepts it under an id made of
-- its type and resource: a delivery of the same that comes later is a duplicate. It has looked for deliveries that came
-- before, and looks again if others have come since. If no backfill has run for long, this costs a group of deliveries
-- one EXISTS.
if is_backfill then redis.call('SET', backfilled, 1, 'EX', 2 * retention) end
local has_backfilled = not is_backfill and redis.call('EXISTS', backfilled) == 1
local repeatable = $REPEATABLE
local MOST_CONFLICTS = 100  -- Conflicts that are kept of one webhook-id. Further ones are counted and logged alike.

-- Return true if a backfill has accepted what this delivery brings.
local function was_backfilled(type, resource)
    -- If a resource can have several events of the type, this may be another event. It is accepted, perhaps twice.
    return not repeatable[type] and redis.call('EXISTS', EVENT .. $BACKFILLED .. type .. ':' .. resource) == 1
end

-- Return true if what this delivery or backfill brings was erased.
local function was_erased(type, resource)
    if not secret then return false end
    if redis.call('EXISTS', mark_of(resource)) == 1 then return true end
    -- A resource can have several events of a repeatable type, so this delivery may not be the erased event.
    return (is_backfill or not repeatable[type]) and redis.call('EXISTS', mark_of(type .. ' ' .. resource)) == 1
end

local keys = {}
for i = first, #ARGV, each do keys[#keys + 1] = EVENT .. ARGV[i] end
local any_seen = redis.call('EXISTS', unpack(keys)) > 0

for i = first, #ARGV, each do
    local id, type, resource, job = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
    local key = keys[#outcomes + 1]
    if not is_backfill then count('arrived ', known_types[type] and type or 'unknown') end  -- A sender may invent types.
    local seen = fresh[id] or not any_seen and {} or if_hash('HMGET', key, 'type', 'resource')
    local outcome
    if was_erased(type, resource) then
        outcome = 'erased'
    elseif not seen then
        outcome = 'unreadable'
    elseif seen[1] or seen[2] then
        outcome = 'duplicate'
        if seen[1] ~= type or seen[2] ~= resource then
            outcome = 'conflict'
            if redis.call('HLEN', CONFLICT .. id) < MOST_CONFLICTS then
                write_expiring(CONFLICT .. id, 1000 * retention, 'HSETNX', type .. ' ' .. resource, now)
            end
        end
    elseif is_backfill and has_later(resource, since) then
        outcome = 'changed'
    elseif has_backfilled and was_backfilled(type, resource) then
        outcome = 'duplicate'
    else
        fresh[id] = {type, resource}
        local state = $ACCEPTED
        local entry, received, place = append_entry(id)  -- The first write: fails if Redis is full. A DEL would not.
        entries[#entries + 1], entries[#entries + 2] = score_of(resource), entry
        if job == '' then
            outcome, state = 'quarantined', $QUARANTINED
            redis.call('ZADD', quarantined, now_text, id)
        else
            outcome = 'accepted'
            local number = #ids + 1
            ids[number], job_ids[number] = id, job
            if is_backfill then  -- A millisecond apart, so that the events of one resource keep their order.
                received, place = string.format('%.0f', now - math.floor((#ARGV - i) / each)), entry
            elseif urgent_types[type] then
                urgent_jobs[#urgent_jobs + 1] = job
            end
        end
        local record = {key, 'state', state, 'type', type, 'resource', resource, 'received', received}
        record.id = id
        if place then record[#record + 1], record[#record + 2] = 'place', place end
        if each > 4 then record[#record + 1], record[#record + 2] = $TRACE, ARGV[i + 4] end
        if is_backfill then record[#record + 1], record[#record + 2] = 'backfilled', 1 end
        records[#records + 1] = record
    end
    outcomes[#outcomes + 1] = outcome
end
if #ids > 0 then enqueue('RPUSH', ids, job_ids, {unpack(ARGV, 5, first - 1)}) end
if #urgent_jobs > 0 then push_urgent(unpack(urgent_jobs)) end
if #entries > 0 then redis.call('ZADD', by_resource, unpack(entries)) end
for _, record in ipairs(records) do
    local key = record[1]
    if record[3] == $ACCEPTED then
        redis.call('HSET', unpack(record))
    else
        write_expiring(key, 1000 * retention, 'HSET', unpack(record, 2))
    end
    publish(record.id, record[3], record[5], record[7], {backfilled = is_backfill or nil})
end

write_counts()

return outcomes
