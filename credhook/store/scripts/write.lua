-- Write down what has happened to the events that a process holds.
--
-- An operation that fails does not stop the others. A settlement first writes, in one command, what makes it final. It
-- removes the event from the open ones last: if the script breaks off in between, the sweeper does the rest. Writes to
-- the same keys are made once for all settlements.
--
-- ARGV: retention in s; lease in ms; worker's name, or '' if RQ itself keeps the jobs; then each operation,
--   settlements first: its name, how many arguments it has, and these:
--   settle: webhook-id, fence, job, state, latest, follow, sealed, rest, and handlers with how they ended; see below
--   progress: webhook-id, fence, handler, what it has saved
--   record: webhook-id, fence, handler, how it ended, its attempts, handlers that the event waits for, the failure in JSON or ''
--   ended: webhook-id, handler
--   renew: webhook-id, fence, job
-- Reply: of each operation, in their order, the error if it has failed, else a list:
--   settle: 1 if the claim was still valid, else 0; and the claim of the event that follows, if there is one
--   progress: 1 if it was written, 0 if the claim does not stand
--   record: 1
--   ended: how the handler ended, or nil
--   renew: 1 if the claim still stands, else 0

--! include causes.lua
--! include claim_event.lua
--! include enqueue.lua
--! include hints.lua
--! include events_of_resource.lua
--! include traffic.lua

local MOST_BLOCKED = 500  -- Blocked jobs that one script goes through to find the next events of its resources.
local MOST_SHARING = 20  -- Events of a presentation that are asked whether they need its data.

local call = redis.call
local retention, forgotten = ARGV[1], string.format('%.0f', now + 1000 * ARGV[1])
local worker = {lease = ARGV[2], name = ARGV[3] ~= '' and ARGV[3] or nil}
local write, settled, executions, left = {}, {}, {}, MOST_BLOCKED
local OF_OPEN_EVENTS = {'fence', 'deaths', 'killed', 'lapses'}  -- Fields that a closed event lacks.

-- Return the schedule of a pending handler, or of the fetch, as the record keeps it. A negative `wait`, in ms, stands for no
-- due time of its own. `chosen`: true if the handler has chosen the due time.
local function schedule(attempts, wait, chosen)
    return attempts .. ' ' .. (tonumber(wait) < 0 and '0' or string.format('%.0f', now + wait)) .. (chosen and ' chosen' or '')
end

-- Count the run that ended a handler; a skipped handler has not run.
local function count_end(handler, how)
    if after_prefix($DONE, how) then
        count('done ' .. $HANDLER, handler)
    elseif after_prefix($GAVE_UP, how) then
        count('given_up ' .. $HANDLER, handler)
    end
end

-- The end of a handler is true although the claim was lost. But nothing is written for an event that was erased or
-- replayed since, and a handler that was given up stays done if another worker has recorded that.
function write.record(id, fence, handler, how, attempts, pending, failure)
    local key = EVENT .. id
    local state, received, replayed, before = unpack(
        call('HMGET', key, 'state', 'received', 'replayed', $HANDLER .. handler))
    if not state or not is_of(fence, received, replayed) then return 1 end
    if before then
        if not after_prefix($DONE, how) or after_prefix($DONE, before) then return 1 end
        call('HDEL', key, $BLAMED .. handler)
    end
    -- If this process dies now, the next worker may lack a handler that has begun: remember the names.
    if state == $ACCEPTED or state == $WAITING then
        for name in string.gmatch(pending, '%S+') do call('HSETNX', key, $PENDING .. name, schedule(0, -1)) end
    end
    if tonumber(attempts) > 1 then call('HSET', key, $PENDING .. handler, schedule(attempts, -1)) end
    if failure ~= '' then
        failure = cjson.decode(failure)
        pcall(describe, failure, retention)
        call('HSET', key, $BLAMED .. handler, failure.id)
    end
    call('HSET', key, $HANDLER .. handler, how)  -- Last: if the script breaks off before, a repetition does it all.
    count_end(handler, how)
    return 1
end

function write.ended(id, handler)
    return call('HGET', EVENT .. id, $HANDLER .. handler)
end

-- Return true if the claim with this fence still stands.
local function is_held(id, fence)
    local resource = call('HGET', EVENT .. id, 'resource')
    local locked_by, held
    if resource then locked_by, held = lock_of(resource) end
    return locked_by == id and held == fence
end

function write.progress(id, fence, handler, progress)
    if not is_held(id, fence) then return 0 end
    call('HSET', EVENT .. id, $PROGRESS .. handler, progress)
    return 1
end

function write.renew(id, fence, job)
    if not is_held(id, fence) then return 0 end
    call('ZADD', leases, now + worker.lease, id)
    if worker.name then
        call('ZADD', started, now / 1000 + $RQ_STARTED_SECONDS, job .. ':' .. fence)
    end
    return 1
end

-- Return when a waiting event is due, in ms: after `wait` ms or at the moment `until`, whichever is earlier. If the clock
-- has gone back, a moment may lie too far ahead.
local function due_of(details)
    local due = math.min(details.wait and now + details.wait or math.huge, details['until'] or math.huge)
    return string.format('%.0f', math.max(now, math.min(due, now + 1000 * $LONGEST_WAIT)))
end

-- Return true if another event of the presentation may still need the kept data: an open one that may have data, or a dead
-- one that has seen it and can be replayed. The last events of the presentation count.
local function is_needed(resource, settled_id)
    if call('EXISTS', SNAPSHOT .. resource) == 0 then return false end
    for _, entry in ipairs(entries_of(resource, MOST_SHARING)) do
        local id, type, state, seen = event_at(entry, resource, 'type', 'state', 'seen')
        local is_open = state == $ACCEPTED or state == $WAITING
        if id and id ~= settled_id and urgent_types[type] and (is_open or seen and state ~= $DONE) then return true end
    end
    return false
end

-- Record how handlers ended under a claim that no longer stands. Return 1 if an earlier run of this settlement was written and
-- only its reply was lost, else 0.
local function settle_lost_claim(id, fence, last_fence, record, state, records, details)
    local schedules, failed, not_pending, pending = details.schedules or {}, {}, {[$FETCH] = true}, {}
    for _, failure in ipairs(details.failures or {}) do failed[failure.who] = cjson.encode(failure) end
    for i = 1, #records, 2 do not_pending[records[i]] = true end
    for name in pairs(schedules) do if not not_pending[name] then pending[#pending + 1] = name end end
    for i = 1, #records, 2 do
        local name = records[i]
        local attempts = (schedules[name] or {1})[1]
        write.record(id, fence, name, records[i + 1], attempts, table.concat(pending, ' '), failed[name] or '')
    end
    -- The earlier run has left this state, and a fence that is one higher. No claim has come since.
    local next_fence = string.format('%.0f', fence + 1)
    local unclaimed = not last_fence or (last_fence == next_fence and not call('ZSCORE', leases, id))
    local same = record.state == state and is_of(fence, record.received, record.replayed)
    return unclaimed and same and 1 or 0
end

-- Write down how an attempt ended:
--   state     the event's new state
--   latest    rank and `updatedAt` of the resource's latest state that handlers have seen, or ''
--   follow    '1' to claim the resource's next event
--   sealed    '1' if a snapshot may have been kept
--   rest      '' or JSON; see `Settlement.more` in worker/queue/claims.py
function write.settle(id, fence, job, state, latest, follow, sealed, rest, ...)
    local key, records, details = EVENT .. id, {...}, rest ~= '' and cjson.decode(rest) or {}
    executions[#executions + 1] = job .. ':' .. fence
    local record = by_field(call('HGETALL', key))
    local last_fence, lapses, locked
    if record.resource then last_fence, lapses, locked = last_claim(id, record) end
    if last_fence ~= fence and locked then
        -- An earlier run of this settlement was broken off: it has raised the record's fence and has left the lock.
        local _, held, counted = lock_of(record.resource)
        if held == fence then last_fence, lapses = held, counted end
    end
    if last_fence ~= fence then return {settle_lost_claim(id, fence, last_fence, record, state, records, details)} end
    local is_open = state == $WAITING or state == $ACCEPTED
    local set, unset = {key, 'state', state}, {}
    local function put(field, value) set[#set + 1], set[#set + 2] = field, value end
    local function drop(field) if record[field] then unset[#unset + 1] = field end end
    for i = 1, #records, 2 do put($HANDLER .. records[i], records[i + 1]) end
    if details.error then put('error', details.error) elseif state ~= $WAITING then drop('error') end
    local causes, highest = details.causes or {}, 1
    for name, cause in pairs(causes) do put($BLAMED .. name, cause) end
    local is_final = not is_open and state ~= $UNHANDLED
    for field in pairs(record) do
        local blamed = after_prefix($BLAMED, field)
        if blamed and not causes[blamed] then drop(field) end
        if is_final and after_prefix($PROGRESS, field) then drop(field) end
    end
    for name, run in pairs(details.schedules or {}) do
        put($PENDING .. name, schedule(unpack(run)))
        highest = math.max(highest, run[1])
    end
    if details.fetched then drop($PENDING .. $FETCH) end
    drop('holder')
    if latest ~= '' then put('latest', latest) end
    local due = state == $WAITING and due_of(details)
    if is_open then
        lapses = tonumber(lapses) - 1  -- This claim has not lapsed.
        if lapses > 0 then put('lapses', lapses) else drop('lapses') end
        put('fence', string.format('%.0f', fence + 1))  -- So that a repetition does not settle it once more.
        if due then put('due', due) end
    else
        -- If the clock has gone back since the claim, a replay must still get a higher fence.
        put('settled', string.format('%.0f', math.max(now, fence)))
        for _, field in ipairs(OF_OPEN_EVENTS) do drop(field) end
        if state == $DONE then drop('seen') end
        if state ~= $UNHANDLED then drop($ONLY) end
    end
    for _, failure in ipairs(details.failures or {}) do pcall(describe, failure, retention) end
    if state == $DONE and sealed == '1' then  -- The snapshot goes after the marks that make it needless, before the state.
        if #records > 0 then call('HSET', key, unpack(set, 4, 3 + #records)) end
        if not is_needed(record.resource, id) then call('DEL', SNAPSHOT .. record.resource) end
    end
    call('HSET', unpack(set))
    if #unset > 0 then call('HDEL', key, unpack(unset)) end
    if is_open then
        if state == $ACCEPTED then  -- Handed back: to the head of the queue, where it came from.
            enqueue('LPUSH', {id}, {job})
        elseif worker.name then
            call('ZADD', scheduled, due / 1000, job)
        end
        -- A postponed event, whose handler has chosen to wait, is late only once it is due, whatever becomes of it then.
        local postponed = due and details.chosen
        call('ZADD', delayed, 'GT', postponed and due or record.received, id)
        call('ZADD', open, postponed and -now or now, id)
        call('PERSIST', key)  -- A settlement that was broken off may have let it expire.
    else
        call('PEXPIREAT', key, forgotten)
        if state ~= $DONE then call('ZADD', state == $UNHANDLED and unhandled .. record.type or dead, now, id) end
    end
    if has_listeners() then
        publish(id, state, record.type, record.resource, {
            attempt = highest, error = details.error or '', wait = due and due - now or nil, age = now - record.received,
        })
    end
    local failures = details.failures
    if state == $DONE then
        count('done ', record.type)
    elseif state == $DEAD or state == $DATA_GONE then
        count('given_up ', record.type)
    elseif failures then
        count('failed ', record.type)
    end
    for i = 1, #records, 2 do count_end(records[i], records[i + 1]) end
    for _, failure in ipairs(failures or {}) do
        local run = details.schedules and details.schedules[failure.who]
        if run and run[2] >= 0 then count('failed ' .. $HANDLER, failure.who) end  -- It is tried again.
    end
    local settlement = {id = id, job = job, resource = record.resource, follow = follow == '1', details = details,
                        is_open = is_open, locked = locked, reply = {1}}
    settled[#settled + 1] = settlement
    return settlement.reply
end

-- Release the claims of settled events, and remove closed events from the open ones.
local function release()
    local ids, closed, job_keys, unlocked = {}, {}, {}, {}
    for _, settlement in ipairs(settled) do
        ids[#ids + 1] = settlement.id
        if not settlement.is_open then
            closed[#closed + 1], job_keys[#job_keys + 1] = settlement.id, 'rq:job:' .. settlement.job
        end
        if settlement.locked then unlocked[#unlocked + 1] = settlement.resource end
    end
    call('ZREM', leases, unpack(ids))
    if #unlocked > 0 then call('HDEL', locks, unpack(unlocked)) end  -- Later: by its lock a repetition knows its claim.
    if #closed > 0 then
        if worker.name then call('DEL', unpack(job_keys)) end
        call('ZREM', delayed, unpack(closed))
        call('ZREM', open, unpack(closed))
    end
end

-- Let the resource's next event be worked on: return its claim if this process goes on, or else put its job at the head
-- of the queue.
local function let_next(resource, goes_on)
    -- The lock may be taken: if our claim had lapsed, the next event may have begun already.
    while left > 0 do
        left = left - 1
        if claimed[resource] or holder_of(resource) then break end
        local job = call('ZPOPMIN', blocked .. resource)[1]
        if not job then break end
        local id = event_of(job)
        if goes_on then
            local got = claim(id, job, worker)
            if type(got) == 'table' then return got end
        elseif call('EXISTS', 'rq:job:' .. job) == 1 then
            enqueue('LPUSH', {id}, {job})
            break
        end
    end
end

-- Write histories, and let the next events begin. The events stay settled if this fails: the sweeper finds
-- events that stay blocked.
local function go_on()
    local waiting, claims, replies = {}, {}, {}
    for _, settlement in ipairs(settled) do
        local history = settlement.details.history
        if history then pcall(append, settlement.id, history, not settlement.is_open and retention) end
        waiting[#waiting + 1] = blocked .. settlement.resource
    end
    if call('EXISTS', unpack(waiting)) == 0 then return end
    for _, settlement in ipairs(settled) do
        local ok, following = pcall(let_next, settlement.resource, settlement.follow)
        if ok and following then
            claims[#claims + 1], replies[#replies + 1] = following, settlement.reply
        end
    end
    if not pcall(hold, claims, worker) then return end
    for place, reply in ipairs(replies) do reply[2] = claims[place] end
end

local replies, at = {}, 4  -- Where the next operation begins in ARGV.

local function run_next()
    local last = at + 1 + ARGV[at + 1]
    local ok, reply = pcall(write[ARGV[at]], unpack(ARGV, at + 2, last))
    if not ok then reply = {err = type(reply) == 'table' and reply.err or tostring(reply)} end
    replies[#replies + 1] = type(reply) == 'table' and reply or {reply}
    at = last + 1
end

-- Settlements and renewals shall pass although Redis is full. Redis allows a script everything after its first write, and a
-- PERSIST of leases, which never expire, changes nothing and needs no memory. Records and progress wait.
if ARGV[at] ~= 'record' and ARGV[at] ~= 'progress' then call('PERSIST', leases) end
while ARGV[at] == 'settle' do run_next() end
if #executions > 0 then call('ZREM', started, unpack(executions)) end
if #settled > 0 then
    release()
    pcall(go_on)
end
while ARGV[at] do run_next() end
write_counts()
return replies
