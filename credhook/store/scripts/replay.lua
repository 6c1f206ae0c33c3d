-- Put settled and quarantined events back into the queue, as if they had just been accepted, or to go on where they
-- stood.
--
-- The new fence is higher than that of any earlier claim, so that a worker that once held the event and lost it cannot
-- settle it now. The record changes last, after the job and the entry among the open events have been written: if a
-- command fails, the replay can be asked for again, and the sweeper finds what is accepted but not in the queue.
--
-- KEYS: as in keys.lua.
-- ARGV: the handler to run, or '' for all; the types that it wants, each between spaces, or '' if unknown; 'now'
--   if waiting events become due at once, 'resume' if events are to go on where they stood; the entry in each
--   event's history, an object in JSON; number of job fields, then these fields and their values; then of each event
--   webhook-id, job's id, and the state in which it was selected.
-- Reply: what became of each event: replayed, or the reason why it was left.

--! include keys.lua
--! include causes.lua
--! include event_index.lua
--! include now.lua
--! include record.lua
--! include history.lua

--! include changes.lua
--! include lock.lua

local handler, wanted, hurry, resume = ARGV[1], ARGV[2], ARGV[3] == 'now', ARGV[3] == 'resume'
local entry, fields = ARGV[4], tonumber(ARGV[5])
local known = $EVENT_TYPES
local outcomes, replayed = {}, {}

local function enqueue(id, resource, job, received)
    redis.call('DEL', 'rq:job:' .. job)
    redis.call('HSET', 'rq:job:' .. job, unpack(ARGV, 6, 5 + 2 * fields))
    redis.call('ZADD', open, now, id)
    redis.call('ZADD', open_by_received, received or now, id)
    unlock(id, resource)  -- A settlement that was broken off may have left it.
    redis.call('ZREM', leases, id)
    redis.call('ZREM', scheduled, job)
    redis.call('ZREM', failed, job)
    replayed[#replayed + 1] = job
end

-- Forget how handlers ended: those that gave up, or all. Returns their names.
local function forget_failures(key, all)
    local record, forgotten = redis.call('HGETALL', key), {}
    for i = 1, #record, 2 do
        local is_handler = string.sub(record[i], 1, #$HANDLER) == $HANDLER
        if is_handler and (all or string.sub(record[i + 1], 1, #$GAVE_UP) == $GAVE_UP) then
            redis.call('HDEL', key, record[i])
            forgotten[#forgotten + 1] = string.sub(record[i], #$HANDLER + 1)
        end
    end
    return forgotten
end

-- Begin anew with the event. Of one that is done, a handler that is named runs alone: others may have come since.
local function start_over(id, key, state)
    -- A worker that lacks one of these is not to settle it.
    local waits_for = redis.call('HMGET', key, $ONLY, $PENDING)
    local pending = {waits_for[1] or nil, waits_for[2] or nil}
    if handler == '' then
        for _, name in ipairs(forget_failures(key, state == $DONE)) do pending[#pending + 1] = name end
    else
        redis.call('HDEL', key, $HANDLER .. handler)
        pending[#pending + 1] = handler
    end
    redis.call('HDEL', key, 'attempts', 'due', 'seen', 'deaths', 'killed', $ONLY, $PENDING)
    local trace = redis.call('HGET', key, $TRACE)
    if trace and string.sub(trace, 1, #$REPLAYED) ~= $REPLAYED then
        redis.call('HSET', key, $TRACE, $REPLAYED .. trace)
    end
    if handler ~= '' and state == $DONE then
        redis.call('HSET', key, $ONLY, handler)
    elseif #pending > 0 then
        redis.call('HSET', key, $PENDING, table.concat(pending, ' '))
    end
    -- A snapshot was kept because the platform may not show the data again: the worker should look for it first.
    if redis.call('EXISTS', SNAPSHOT .. id) == 1 then redis.call('HSET', key, 'seen', 1) end
end

-- Resolve the earlier failures: the event starts again.
local function explain(id)
    resolve(causes, id, false)
    append(id, entry)
end

local function replay(id, job, selected)
    local key = EVENT .. id
    local record, problem = record_of(id)
    if not record then return problem and 'unreadable' or 'missing' end
    local state, type, resource, received = record.state, record.type, record.resource, record.received
    local is_open = state == $ACCEPTED or state == $WAITING
    -- It was set aside as unreadable, and all of its record has been mended since, its state as well.
    local mended = is_open and redis.call('ZSCORE', unreadable, id) and not redis.call('ZSCORE', open, id)
    if state == $WAITING and hurry and not mended then
        if not redis.call('ZSCORE', open, id) then return 'elsewhere' end
        local lease = redis.call('ZSCORE', leases, id)
        if lease and tonumber(lease) > now then return 'open' end
        redis.call('HDEL', key, 'due')
        enqueue(id, resource, job, received)
        pcall(explain, id)
        publish(id, state, type, resource, {replayed = true})
        return 'replayed'
    end
    if is_open and not mended then return 'open' end
    if state ~= selected then return 'changed' end
    if not known[type] then return 'unknown_type' end
    if resource == '' then return 'no_resource' end
    if handler ~= '' then
        local fits = string.find(wanted, ' ' .. type .. ' ', 1, true)
        if wanted == '' then fits = redis.call('HEXISTS', key, $HANDLER .. handler) == 1 end
        if not fits then return 'unrelated' end
    end
    enqueue(id, resource, job, received)
    if state == $QUARANTINED and received then  -- It was indexed among the unknown types.
        redis.call('ZADD', index_of(type, resource), received, id)
        redis.call('ZREM', index_of('', resource), id)
    end
    redis.call('PERSIST', key)
    if not resume then
        start_over(id, key, state)
        pcall(explain, id)
    end
    redis.call('HDEL', key, 'error', 'settled')
    redis.call('HSET', key, 'state', $ACCEPTED, 'fence', now)
    redis.call('ZREM', dead, id)
    redis.call('ZREM', quarantined, id)
    redis.call('ZREM', unreadable, id)
    redis.call('ZREM', unhandled .. type, id)
    publish(id, $ACCEPTED, type, resource, {replayed = true})
    return 'replayed'
end

for i = 6 + 2 * fields, #ARGV, 3 do
    outcomes[#outcomes + 1] = replay(ARGV[i], ARGV[i + 1], ARGV[i + 2])
end
if #replayed > 0 then
    redis.call('SADD', 'rq:queues', jobs)
    redis.call('RPUSH', jobs, unpack(replayed))
end
return outcomes
