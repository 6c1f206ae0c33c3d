-- Write down what has happened to the events that a process holds.
--
-- An operation that fails does not stop the others. A settlement first writes, in one command, what makes it final. It
-- removes the event from the open ones last: if the script breaks off in between, the sweeper does the rest. Writes to
-- the same keys are made once for all settlements.
--
-- ARGV: retention in s; lease in ms; worker's name, or '' if RQ itself keeps the jobs; its token; then each operation,
--   settlements first: its name, how many arguments it has, and these:
--   settle: webhook-id, fence, job, state, latest, follow, sealed, rest, and handlers with how they ended; see below
--   record: webhook-id, handler, how it ended, handlers that the event waits for, the failure in JSON or ''
--   ended: webhook-id, handler
--   renew: webhook-id, fence, job
-- Reply: of each operation, in their order, the error if it has failed, else a list:
--   settle: 1 if the claim was still valid, else 0; and the claim of the event that follows, if there is one
--   record: 1
--   ended: how the handler ended, or nil
--   renew: 1 if the claim still stands, else 0

--! include causes.lua
--! include claim_event.lua
--! include hints.lua

local MOST_BLOCKED = 500  -- Blocked jobs that one script goes through to find the next events of its resources.
local LATEST_LASTS = 86400000  -- Ms that the latest state of a resource is remembered. After that the details decide.

local call = redis.call
local retention, forgotten = ARGV[1], string.format('%.0f', now + 1000 * ARGV[1])
local worker = {lease = ARGV[2], name = ARGV[3] ~= '' and ARGV[3] or nil, token = ARGV[4]}
local write, settled, ended, left = {}, {}, {}, MOST_BLOCKED

-- A record is true under every claim, so it takes no fence. An event that was erased meanwhile stays erased. A failure
-- is counted here and now: once the handler is given up, no later attempt would count it.
function write.record(id, handler, how, pending, failure)
    local state, before = unpack(call('HMGET', EVENT .. id, 'state', $HANDLER .. handler))
    local is_open = state == $ACCEPTED or state == $WAITING
    if state and failure ~= '' and before ~= how then pcall(record_failure, id, cjson.decode(failure), is_open, retention) end
    if state then call('HSET', EVENT .. id, $HANDLER .. handler, how) end
    -- If this process dies now, the next worker may lack a handler that has begun: remember the names.
    if pending ~= '' and is_open then call('HSET', EVENT .. id, $PENDING, pending) end
    return 1
end

function write.ended(id, handler)
    return call('HGET', EVENT .. id, $HANDLER .. handler)
end

function write.renew(id, fence, job)
    local resource = call('HGET', EVENT .. id, 'resource')
    local locked_by, held
    if resource then locked_by, held = lock_of(resource) end
    if locked_by ~= id or held ~= fence then return 0 end
    call('ZADD', leases, now + worker.lease, id)
    if worker.name then
        call('ZADD', started, now / 1000 + $RQ_PATIENCE, job .. ':' .. fence)
    end
    return 1
end

-- Count why an attempt has failed.
local function blame(id, details, is_open)
    for _, failure in ipairs(details.failures or {}) do count_failure(failure, retention) end
    for _, cause in pairs(details.causes or {}) do add_open_error(id, cause, is_open, retention) end
end

-- Write down how an attempt ended:
--   state     the event's new state
--   latest    rank and `updatedAt` of the resource's latest state that handlers have seen, or ''
--   follow    '1' to claim the resource's next event
--   sealed    '1' if a snapshot may have been kept
--   rest      '' or JSON; see `Settlement.more` in worker/queue/claims.py
function write.settle(id, fence, job, state, latest, follow, sealed, rest, ...)
    local key, records, details = EVENT .. id, {...}, rest ~= '' and cjson.decode(rest) or {}
    ended[#ended + 1] = job .. ':' .. fence
    local record = by_field(call('HGETALL', key))
    local last_fence, attempts, locked
    if record.resource then last_fence, attempts, locked = last_claim(id, record) end
    if last_fence ~= fence then
        local failed = {}
        for _, failure in ipairs(details.failures or {}) do failed[failure.who] = cjson.encode(failure) end
        for i = 1, #records, 2 do write.record(id, records[i], records[i + 1], '', failed[records[i]] or '') end
        -- If it has this state and was not claimed since, an earlier run settled it and the reply was lost.
        local next_fence = string.format('%.0f', fence + 1)
        local unclaimed = not last_fence or (last_fence == next_fence and not call('ZSCORE', leases, id))
        return {unclaimed and record.state == state and 1 or 0}
    end
    local is_open = state == $WAITING or state == $ACCEPTED
    local set, unset = {key, 'state', state}, {key}
    local function put(field, value) set[#set + 1], set[#set + 2] = field, value end
    local function drop(field) if record[field] then unset[#unset + 1] = field end end
    for i = 1, #records, 2 do put($HANDLER .. records[i], records[i + 1]) end
    if details.error then put('error', details.error) else drop('error') end
    for name, cause in pairs(details.causes or {}) do put($BLAMED .. name, cause) end
    for name in pairs(details.resolved or {}) do
        if not (details.causes or {})[name] then drop($BLAMED .. name) end
    end
    drop('holder')
    attempts = attempts - (details.unspent and 1 or 0)
    if is_open or details.unspent or attempts > 1 then put('attempts', attempts) else drop('attempts') end
    if is_open then
        put('fence', string.format('%.0f', fence + 1))  -- So that a repetition does not settle it once more.
        if state == $WAITING then put('due', now + (details.wait or 0)) end
        if details.pending then put($PENDING, details.pending) end
    else
        put('settled', now_text)
        for _, field in ipairs({'fence', 'deaths', 'killed', $PENDING}) do drop(field) end
        if state == $DONE then drop('seen') end
        if state ~= $UNHANDLED then drop($ONLY) elseif details.only then put($ONLY, details.only) end
    end
    pcall(blame, id, details, is_open)
    if state == $DONE and sealed == '1' then  -- The snapshot goes after the marks that make it needless, before the state.
        if #records > 0 then call('HSET', key, unpack(set, 4, 3 + #records)) end
        call('DEL', SNAPSHOT .. id)
    end
    call('HSET', unpack(set))
    if #unset > 1 then call('HDEL', unpack(unset)) end
    if is_open then
        if state == $ACCEPTED then  -- Handed back: to the head of the queue, where it came from.
            call('LPUSH', jobs, job)
        elseif worker.name then
            call('ZADD', scheduled, (now + (details.wait or 0)) / 1000, job)
        end
        call('ZADD', open_by_received, record.received, id)
        call('ZADD', open, now, id)
        call('PERSIST', key)  -- A settlement that was broken off may have let it expire.
    else
        call('PEXPIREAT', key, forgotten)
        if worker.name then call('DEL', 'rq:job:' .. job) end
        if state ~= $DONE then call('ZADD', state == $UNHANDLED and unhandled .. record.type or dead, now, id) end
    end
    publish(id, state, record.type, record.resource, {
        attempt = attempts, error = details.error or '', wait = details.wait, age = now - record.received,
    })
    if latest ~= '' then call('SET', RESOURCE .. record.resource, latest, 'PX', LATEST_LASTS) end
    local settlement = {id = id, resource = record.resource, follow = follow == '1', details = details,
                        is_open = is_open, locked = locked, reply = {1}}
    settled[#settled + 1] = settlement
    return settlement.reply
end

-- Release the claims of settled events, and remove closed events from the open ones.
local function release()
    local ids, closed, unlocked = {}, {}, {}
    for _, settlement in ipairs(settled) do
        ids[#ids + 1] = settlement.id
        if not settlement.is_open then closed[#closed + 1] = settlement.id end
        if settlement.locked then unlocked[#unlocked + 1] = settlement.resource end
    end
    if #unlocked > 0 then call('HDEL', locks, unpack(unlocked)) end
    call('ZREM', leases, unpack(ids))
    if #closed > 0 then
        call('ZREM', open_by_received, unpack(closed))
        call('ZREM', open, unpack(closed))
    end
end

-- Remove the event from its former causes, and append the attempt to its history.
local function explain(id, details, is_open)
    for _, cause in pairs(details.resolved or {}) do remove_open_error(id, cause) end
    if details.history then append(id, details.history, not is_open and retention) end
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
            call('ZADD', open, 'XX', now, id)
            call('LPUSH', jobs, job)
            break
        end
    end
end

-- Write histories, and let the next events begin. The events stay settled if this fails: the sweeper finds
-- events that stay blocked.
local function go_on()
    local waiting, claims, replies = {}, {}, {}
    for _, settlement in ipairs(settled) do
        if next(settlement.details) then pcall(explain, settlement.id, settlement.details, settlement.is_open) end
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

local replies, i = {}, 5  -- Where the operations begin.

-- Run the operations from `i` on, settlements or all others.
local function run(settlements)
    while ARGV[i] and (ARGV[i] == 'settle') == settlements do
        local last = i + 1 + ARGV[i + 1]
        local ok, reply = pcall(write[ARGV[i]], unpack(ARGV, i + 2, last))
        if not ok then reply = {err = type(reply) == 'table' and reply.err or tostring(reply)} end
        replies[#replies + 1] = type(reply) == 'table' and reply or {reply}
        i = last + 1
    end
end

-- Settlements and renewals shall pass although Redis is full, which allows a script everything once it has written
-- something: this changes nothing, and needs no memory. Records wait.
if ARGV[i] ~= 'record' then call('PERSIST', leases) end
run(true)
if #ended > 0 then call('ZREM', started, unpack(ended)) end
if #settled > 0 then
    release()
    pcall(go_on)
end
run(false)
return replies
