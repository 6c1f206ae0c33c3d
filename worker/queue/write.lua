-- Write down what has happened to the events that a process holds, in the order in which it happened.
--
-- Each operation stands or falls alone. A settlement first writes, in one command, what makes it final, and takes the
-- event from the open ones last: if it breaks off in between, the reconciler does the rest.
--
-- KEYS: as in worker_keys.lua.
-- ARGV: retention in s, then each operation as a JSON array:
--   ["record", webhook-id, handler, how, pending, failure]  how a handler has ended, and what it has failed with
--   ["ended", webhook-id, handler]                      ask for that
--   ["renew", webhook-id, fence, job, execution, lease] keep a claim
--   ["settle", webhook-id, fence, job, execution, what] write down how the attempt ended, and give up the claim
-- Reply: one for each operation, in their order:
--   record: 1
--   ended: how, or nil
--   renew: 1 if the claim still stands, else 0
--   settle: 1 if the event was the claim's to settle, else 0; and the claim of the event that follows, if there is one
--   any that failed: the error

--! include credhook.ledger/causes.lua
--! include credhook.ledger/claim_event.lua
--! include credhook.ledger/changes.lua
--! include credhook.ledger/event_of_job.lua
--! include credhook.ledger/listed.lua
--! include credhook.ledger/story.lua

local LATEST_LASTS = 86400  -- Seconds that the latest state of a resource is remembered. After that the details decide.

local call = redis.call
local retention = ARGV[1]
local write = {}

-- True whoever holds the claim, so it takes no fence. An event that was erased meanwhile stays erased. A failure is
-- counted here and now: once the handler is given up, no later attempt would.
function write.record(id, handler, how, pending, failure)
    local state, before = unpack(call('HMGET', $EVENT .. id, 'state', $HANDLER .. handler))
    if state then call('HSET', $EVENT .. id, $HANDLER .. handler, how) end
    if state and failure and before ~= how then
        pcall(fail, causes, id, failure, state == $ACCEPTED or state == $WAITING, retention)
    end
    -- If this process dies now, the next may lack a handler that has begun.
    if pending and pending ~= '' and (state == $ACCEPTED or state == $WAITING) then
        call('HSET', $EVENT .. id, $PENDING, pending)
    end
    return 1
end

function write.ended(id, handler)
    return call('HGET', $EVENT .. id, $HANDLER .. handler)
end

function write.renew(id, fence, job, execution, lease)
    local held, resource = unpack(unless_odd('HMGET', $EVENT .. id, 'fence', 'resource') or {})
    if held ~= fence or not resource then return 0 end
    local holder = holder_of(busy .. resource)
    if holder and holder ~= id then return 0 end  -- Our lock had lapsed, and the resource's next event has begun.
    -- First what needs no memory, as in `settle`.
    if not holder or call('PEXPIRE', busy .. resource, lease) == 0 then
        call('SET', busy .. resource, id, 'PX', lease)
    end
    call('ZADD', leases, now + lease, id)
    local record = 'rq:execution:' .. job .. ':' .. execution
    if execution ~= '' and call('EXISTS', record) == 1 then
        unless_odd('HSET', record, 'last_heartbeat', now / 1000)
        beat(job, execution)
    end
    return 1
end

-- Let the resource's next event be worked on: claim it for `who`, or else put its job at the head of the queue.
local function let_next(resource, who)
    -- The lock may be taken: if our claim had lapsed, the next event may have begun already.
    while call('EXISTS', busy .. resource) == 0 do
        local job = (unless_odd('ZPOPMIN', parked .. resource) or {})[1]
        if not job then break end
        local id, data = event_of(job)
        if id and who then
            local got = claim(id, job, who)
            if type(got) == 'table' then return got end
        elseif data then
            if id then call('ZADD', open, 'XX', now, id) end
            call('LPUSH', jobs, job)
            break
        end
    end
    return false
end

-- Remember which state of the resource handlers have seen, unless they have seen a later one.
local function remember(resource, rank, updated)
    local old_rank, old_updated = latest_of(resource)
    rank, updated = math.max(rank, old_rank or 0), math.max(updated, old_updated or 0)
    call('SET', $RESOURCE .. resource, string.format('%d:%.0f', rank, updated), 'EX', LATEST_LASTS)
end

local function set_status(job, status)
    if call('EXISTS', 'rq:job:' .. job) == 1 then
        unless_odd('HSET', 'rq:job:' .. job, 'status', status, 'worker_name', '')
    end
end

-- Take the event from the open ones, whoever accepted it: an older receiver does not list what it accepts.
local function close(id, type, resource)
    if unless_odd('ZREM', opened, id) == 0 and is_word(type) and resource then
        local received = call('HGET', $EVENT .. id, 'received')
        if is_count(received) then list_missing((place_of(type, resource)), id, received) end
    end
    unless_odd('ZREM', open, id)
end

-- Count why an attempt has failed, and tell of it.
local function explain(id, what, is_open)
    for _, cause in pairs(what.absolved or {}) do stands_no_more(causes, id, cause) end
    for _, failure in ipairs(what.failures or {}) do blame(causes, failure, retention) end
    for _, cause in pairs(what.causes or {}) do stand(causes, id, cause, is_open, retention) end
    if what.story then tell(id, what.story, not is_open and retention) end
end

-- Fields of `what`: `state`, where the event stands now; `error`; `wait`, in ms; `spend`, whether the attempt counts;
-- `records`, how each handler has ended; `only`, the handlers that an unhandled event waits for, and `pending`, those
-- that a waiting one does, with spaces between them, or ''; `sealed`, whether a snapshot may have been kept; `rank` and
-- `updated`, the state of the resource that handlers have seen, or false; `who`, for whom to claim the resource's next
-- event, or false. And where anything has failed or is to be told: `failures`, as `blame` wants them; `causes` and
-- `absolved`, who has failed and with which cause the event stands, and stands no more; `story`, an object in JSON.
function write.settle(id, fence, job, execution, what)
    local key = $EVENT .. id
    -- A Redis that is full allows a script everything once it has written something: begin with what needs no memory.
    if execution ~= '' then unless_odd('ZREM', started, job .. ':' .. execution) end
    local held, state, type, resource, attempts, received =
        unpack(call('HMGET', key, 'fence', 'state', 'type', 'resource', 'attempts', 'received'))
    local gone = {'rq:execution:' .. job .. ':' .. execution, 'rq:executions:' .. job}
    if held ~= fence then
        local failed = {}
        for _, failure in ipairs(what.failures or {}) do failed[failure.who] = failure end
        for handler, how in pairs(what.records) do write.record(id, handler, how, '', failed[handler]) end
        call('DEL', unpack(gone))
        -- In that state, and not claimed since? Then this was written before, and only the reply was lost.
        local next_fence = string.format('%.0f', fence + 1)
        local nobodys = not held or (held == next_fence and not call('ZSCORE', leases, id))
        return {nobodys and state == what.state and 1 or 0, false}
    end
    local is_open = what.state == $WAITING or what.state == $ACCEPTED
    local set, unset = {'state', what.state}, {'holder'}
    local function put(field, value) set[#set + 1], set[#set + 2] = field, value end
    for handler, how in pairs(what.records) do put($HANDLER .. handler, how) end
    if what.error ~= '' then put('error', what.error) else unset[#unset + 1] = 'error' end
    for who, cause in pairs(what.causes or {}) do put($BLAMED .. who, cause) end
    for who in pairs(what.absolved or {}) do
        if not what.causes[who] then unset[#unset + 1] = $BLAMED .. who end
    end
    if not what.spend then
        attempts = (tonumber(attempts) or 1) - 1
        put('attempts', attempts)
    end
    if is_open then
        put('fence', string.format('%.0f', fence + 1))  -- So that no late renewal brings the claim back.
        if what.state == $WAITING then put('due', now + what.wait) end
        if what.pending ~= '' then put($PENDING, what.pending) end
    else
        put('settled', now)
        for _, field in ipairs({'fence', 'deaths', 'killed'}) do unset[#unset + 1] = field end
        if what.spend and tonumber(attempts) == 1 then unset[#unset + 1] = 'attempts' end
        if what.state == $DONE then unset[#unset + 1] = 'seen' end
        unset[#unset + 1] = $PENDING
        if what.state ~= $UNHANDLED then
            unset[#unset + 1] = $ONLY
        elseif what.only ~= '' then
            put($ONLY, what.only)
        end
    end
    unless_odd('ZREM', leases, id)
    call('HSET', key, unpack(set))
    call('HDEL', key, unpack(unset))
    if what.rank and resource then remember(resource, what.rank, what.updated) end
    if resource and unless_odd('GET', busy .. resource) == id then gone[#gone + 1] = busy .. resource end
    if not is_open then
        call('EXPIRE', key, retention)
        if what.state == $DONE and what.sealed then gone[#gone + 1] = $SNAPSHOT .. id end
        if execution ~= '' then gone[#gone + 1] = 'rq:job:' .. job end
    end
    call('DEL', unpack(gone))
    if what.state == $WAITING then
        if execution ~= '' then
            unless_odd('ZADD', scheduled, (now + what.wait) / 1000, job)
            set_status(job, 'scheduled')
        end
        unless_odd('ZADD', open, now, id)
    elseif what.state == $ACCEPTED then  -- Handed back: to the head of the queue, where it came from.
        unless_odd('LPUSH', jobs, job)
        set_status(job, 'queued')
        unless_odd('ZADD', open, now, id)
    elseif what.state == $DONE
        or unless_odd('ZADD', what.state == $UNHANDLED and unhandled .. (type or '') or dead, now, id) then
        close(id, type, resource)
    end
    if listened() then
        publish(id, what.state, type, resource, {
            attempt = tonumber(attempts), error = what.error, wait = what.state == $WAITING and what.wait or nil,
            age = is_count(received) and now - received or nil,
        })
    end
    -- It is settled, whatever becomes of this and of the next event. The reconciler finds what stays parked.
    pcall(explain, id, what, is_open)
    if not resource then return {1, false} end
    local ok, following = pcall(let_next, resource, what.who)
    return {1, ok and following}
end

local replies = {}
for i = 2, #ARGV do
    local operation = cjson.decode(ARGV[i])
    local ok, reply = pcall(write[operation[1]], unpack(operation, 2))
    if not ok then reply = {err = type(reply) == 'table' and reply.err or tostring(reply)} end
    replies[#replies + 1] = reply
end
return replies
