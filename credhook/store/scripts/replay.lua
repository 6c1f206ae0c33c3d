-- Put settled and quarantined events back into the queue, as new events or to go on where they stood.
--
-- The new fence is higher than that of any earlier claim: a worker that lost the event can neither settle it now nor
-- record a handler. The record
-- changes last, after the queue, the open events and the lists of settled events. If a command fails, the replay can be
-- repeated. Workers drop a job whose event is settled, and the sweeper removes such an event from the open ones.
--
-- ARGV: the handler to run, or '' for all; its types, each between spaces, or '' if unknown; 'now' if waiting events
--   become due at once, 'resume' if events go on where they stood, 'renamed' if they wait for no handler; the entry for
--   each event's history, an object in JSON; number of job fields, then these fields and their values; then for each
--   event webhook-id, job's id, and the state in which it was selected.
-- Reply: the outcome of each event: replayed, or the reason why it was left.

--! include causes.lua
--! include enqueue.lua
--! include hints.lua
--! include lock.lua

local handler, wanted = ARGV[1], ARGV[2]
local hurry, resume, renamed = ARGV[3] == 'now', ARGV[3] == 'resume', ARGV[3] == 'renamed'
local entry, first = ARGV[4], 6 + 2 * ARGV[5]
local job_fields, outcomes = {unpack(ARGV, 6, first - 1)}, {}

local function reopen(id, record, job)
    enqueue('RPUSH', {id}, {job}, job_fields)
    redis.call('ZADD', delayed, record.received, id)
    unlock(id, record.resource)  -- A settlement that was broken off may have left it.
    redis.call('ZREM', leases, id)
    redis.call('ZREM', scheduled, job)
    redis.call('ZREM', failed, job)
end

-- Let the pending handlers of the event, and its fetch, be due at once.
local function hasten(key, record)
    for field, schedule in pairs(record) do
        local name = after_prefix($PENDING, field)
        if name and not record[$HANDLER .. name] then
            redis.call('HSET', key, field, string.match(schedule, '^%d*') .. ' 0')
        end
    end
end

-- Begin anew: forget how handlers ended that gave up, or all handlers of an event that is done. A named handler runs
-- alone for an event that is done: others may have come since. Each handler that is to run is pending: a worker that
-- lacks it must not settle the event.
local function start_over(id, key, record)
    local is_done = record.state == $DONE
    local unset, pending = {key, 'lapses', 'due', 'seen', 'deaths', 'killed', $ONLY, $PENDING .. $FETCH}, {key}
    local function await(name)
        if renamed then
            unset[#unset + 1] = $PENDING .. name
        else
            pending[#pending + 1], pending[#pending + 2] = $PENDING .. name, '0 0'
        end
    end
    for field, how in pairs(record) do
        local ended, waiting = after_prefix($HANDLER, field), after_prefix($PENDING, field)
        local gave_up = after_prefix($GAVE_UP, how)
        if ended and (ended == handler or handler == '' and (is_done or gave_up)) then
            unset[#unset + 1] = field
            await(ended)
        elseif waiting and waiting ~= $FETCH and not record[$HANDLER .. waiting] then
            await(waiting)
        end
    end
    if handler ~= '' then await(handler) end
    if #pending > 1 then redis.call('HSET', unpack(pending)) end
    redis.call('HDEL', unpack(unset))  -- Later: if the script breaks off here, a repetition finds the names.
    local trace = record[$TRACE]
    if trace and string.sub(trace, 1, #$REPLAYED) ~= $REPLAYED then
        redis.call('HSET', key, $TRACE, $REPLAYED .. trace)
    end
    if handler ~= '' and is_done then redis.call('HSET', key, $ONLY, handler) end
    -- A snapshot was kept because the platform may not show the data again: the worker should look for it first.
    if redis.call('EXISTS', SNAPSHOT .. record.resource) == 1 then redis.call('HSET', key, 'seen', 1) end
end

-- Return true if the id can stand in a URL, as `is_resource_id` in credhook/events.py says.
local function is_resource_id(id)
    local climbs = string.find('/' .. id .. '/', '[/\\]%.%.?[/\\]')
    return id ~= '' and #id <= $LONGEST_ID and not climbs and not string.find(id, '%c')
        and not string.find(id, '\194[\128-\159]')  -- U+0080 to U+009F
end

-- Forget the open causes, except those of handlers that stay given up: the event starts again.
local function resolve(key)
    local record = by_field(redis.call('HGETALL', key))
    for field in pairs(record) do
        local name = after_prefix($BLAMED, field)
        if name and not after_prefix($GAVE_UP, record[$HANDLER .. name] or '') then redis.call('HDEL', key, field) end
    end
end

local function replay(id, job, selected)
    local key = EVENT .. id
    local record, problem = record_of(id)
    if not record then return problem and 'unreadable' or 'missing' end
    local state, type, resource = record.state, record.type, record.resource
    local is_open = state == $ACCEPTED or state == $WAITING
    -- It was set aside as unreadable, and all of its record has been mended since, its state as well.
    local mended = is_open and redis.call('ZSCORE', unreadable, id) and not redis.call('ZSCORE', open, id)
    if state == $WAITING and hurry and not mended then
        if not redis.call('ZSCORE', open, id) then return 'elsewhere' end
        if has_lease(id) then return 'open' end
        hasten(key, record)
        redis.call('HDEL', key, 'due')
        resolve(key)
        reopen(id, record, job)
        pcall(append, id, entry)
        publish(id, state, type, resource, {replayed = true})
        return 'replayed'
    end
    if is_open and not mended then return 'open' end
    if state ~= selected then return 'changed' end
    if not known_types[type] then return 'unknown_type' end
    if not is_resource_id(resource) then return 'no_resource' end
    if handler ~= '' then
        local fits = string.find(wanted, ' ' .. type .. ' ', 1, true)
        if wanted == '' then fits = record[$HANDLER .. handler] end
        if not fits then return 'unrelated' end
    end
    reopen(id, record, job)
    redis.call('PERSIST', key)
    if not resume then start_over(id, key, record) end
    -- The clock may have gone back since. If the script breaks off, a repetition must get no lower fence.
    local since = math.max(now, tonumber(record.settled) or 0, tonumber(record.fence) or 0)
    redis.call('HSET', key, 'fence', since)
    redis.call('HDEL', key, 'error', 'settled')
    if not resume then resolve(key) end
    for _, list in ipairs({dead, quarantined, unreadable, unhandled .. type}) do redis.call('ZREM', list, id) end
    redis.call('HSET', key, 'state', $ACCEPTED, 'replayed', since)
    if not resume then pcall(append, id, entry) end
    publish(id, $ACCEPTED, type, resource, {replayed = true})
    return 'replayed'
end

for i = first, #ARGV, 3 do
    outcomes[#outcomes + 1] = replay(ARGV[i], ARGV[i + 1], ARGV[i + 2])
end
return outcomes
