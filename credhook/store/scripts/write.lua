-- Write down what has happened to the events that a process holds, in the order in which it happened, and take more.
--
-- Each operation stands or falls alone. A settlement first writes, in one command, what makes it final, and takes the
-- event from the open ones last: if it breaks off in between, the reconciler does the rest. What all settlements of a
-- script write to the same keys is written for all of them together.
--
-- KEYS: as in keys.lua.
-- ARGV: retention in s; for whom events are claimed: lease in ms, worker's name or '', and its token; then each
--   operation, settlements first: its name, how many arguments it has, and these:
--   settle: webhook-id, its resource, how many fields its record had if it was new, or '', fence, job, since when there
--     is this claim, in ms, or '' where RQ keeps the job's records, and how the attempt has ended; see below. Gives up
--     the claim
--   record: webhook-id, handler, how that has ended, what the event waits for, what the handler has failed with
--   ended: webhook-id, handler. Asks for that
--   renew: webhook-id, fence, job, since when there is this claim, likewise; this and the time now, as RQ writes them
--   take: how many, how many of them urgent, '1' if the process has nothing under way; see take.lua
-- Reply: flat; of each operation, in their order, the error if it has failed, else the length of what follows, which is
--   settle: 1 if the event was the claim's to settle, else 0; and the claim of the event that follows, if there is one
--   record: 1
--   ended: how, or nil
--   renew: 1 if the claim still stands, else 0
--   take: see take.lua

--! include by_field.lua
--! include causes.lua
--! include claim_event.lua
--! include changes.lua
--! include event_of_job.lua
--! include heartbeat.lua
--! include story.lua

local FIRST = 5                -- Where the operations begin.
local MOST_PARKED = 100        -- Jobs of a resource that one look for its next event goes through.
local LATEST_LASTS = 86400000  -- Ms that the latest state of a resource is remembered. After that the details decide.

-- What an event has no more once it is closed; and what stands for a table that is not there, to make none.
local CLOSED_WITHOUT, NOTHING = {'fence', 'deaths', 'killed', $PENDING}, {}

local call = redis.call
local retention, forgotten = ARGV[1], string.format('%.0f', now + 1000 * ARGV[1])
local latest_forgotten = string.format('%.0f', now + LATEST_LASTS)
local who = {lease = ARGV[2], name = ARGV[3] ~= '' and ARGV[3] or nil, token = ARGV[4]}
local write, settled = {}, {}

--! include take.lua

write.take = take

-- True whoever holds the claim, so it takes no fence. An event that was erased meanwhile stays erased. A failure is
-- counted here and now: once the handler is given up, no later attempt would.
function write.record(id, handler, how, pending, failure)
    local state, before = unpack(call('HMGET', EVENT .. id, 'state', $HANDLER .. handler))
    if state then call('HSET', EVENT .. id, $HANDLER .. handler, how) end
    if state and failure ~= '' and before ~= how then
        pcall(fail, causes, id, cjson.decode(failure), state == $ACCEPTED or state == $WAITING, retention)
    end
    -- If this process dies now, the next may lack a handler that has begun.
    if pending ~= '' and (state == $ACCEPTED or state == $WAITING) then
        call('HSET', EVENT .. id, $PENDING, pending)
    end
    return 1
end

function write.ended(id, handler)
    return call('HGET', EVENT .. id, $HANDLER .. handler)
end

function write.renew(id, fence, job, since, started_at, time)
    local resource = unless_odd('HGET', EVENT .. id, 'resource')
    local locked_by, held = lock_of(resource)
    if locked_by ~= id or held ~= fence then return 0 end
    call('PERSIST', leases)  -- Changes nothing and needs no memory: first, as with settlements.
    call('ZADD', leases, now + who.lease, id)
    if since ~= '' then beat(job, fence, since, started_at, time, who.name) end
    return 1
end

-- Let the resource's next event be worked on: claim it, if this process goes on, or else put its job at the head of the
-- queue. Returns the claim, or false.
local function let_next(resource, goes_on)
    -- The lock may be taken: if our claim had lapsed, the next event may have begun already.
    for _ = 1, MOST_PARKED do
        if claimed[resource] or holder_of(resource) then break end
        local job = (unless_odd('ZPOPMIN', parked .. resource) or {})[1]
        if not job then break end
        local id, data = event_of(job)
        if id and goes_on then
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

local function set_status(job, status)
    if call('EXISTS', 'rq:job:' .. job) == 1 then
        unless_odd('HSET', 'rq:job:' .. job, 'status', status, 'worker_name', '')
    end
end

-- Count why an attempt has failed, and tell of it.
local function explain(id, what, is_open)
    for _, cause in pairs(what.absolved or NOTHING) do stands_no_more(causes, id, cause) end
    for _, failure in ipairs(what.failures or NOTHING) do blame(causes, failure, retention) end
    for _, cause in pairs(what.causes or NOTHING) do stand(causes, id, cause, is_open, retention) end
    if what.story then tell(id, what.story, not is_open and retention) end
end

-- Write down how an attempt ended: `state`, where the event stands now; `latest`, rank and `updatedAt` of the state of
-- the resource that handlers have seen, or ''; `follow`, '1' if the resource's next event is to be claimed; `sealed`,
-- '1' if a snapshot may have been kept; `more`, in JSON, or ''; and each handler that has ended, and how.
--
-- Fields of `more`, where they are not nil: `error`; `wait`, in ms; `unspent`, if the attempt does not count; `only`,
-- the handlers that an unhandled event waits for, and `pending`, those that a waiting one does, with spaces between
-- them; `failures`, as `blame` wants them; `causes` and `absolved`, who has failed and with which cause the event
-- stands, and stands no more; `story`, an object in JSON.
function write.settle(id, resource, fields, fence, job, since, state, latest, follow, sealed, more, ...)
    local key, records, what = EVENT .. id, {...}, more ~= '' and cjson.decode(more) or NOTHING
    local record
    if fields ~= '' and state == $DONE and more == '' and not listened() and call('HLEN', key) == tonumber(fields) then
        record = {resource = resource}  -- As it was: nothing else of it matters now. To read it takes 2.5 us.
    else
        record = by_field(call('HGETALL', key))
    end
    local type, received = record.type, record.received
    resource = record.resource
    local last_fence, attempts, locked = last_claim(id, record)
    local gone = shown(job, fence, since, who.lease)
    if last_fence ~= fence then
        local failed = {}
        for _, failure in ipairs(what.failures or NOTHING) do failed[failure.who] = cjson.encode(failure) end
        for i = 1, #records, 2 do write.record(id, records[i], records[i + 1], '', failed[records[i]] or '') end
        if #gone > 0 then call('DEL', unpack(gone)) end
        -- In that state, and not claimed since? Then this was written before, and only the reply was lost.
        local next_fence = string.format('%.0f', fence + 1)
        local nobodys = not last_fence or (last_fence == next_fence and not call('ZSCORE', leases, id))
        return {nobodys and record.state == state and 1 or 0}
    end
    local is_open, closes = state == $WAITING or state == $ACCEPTED, state == $DONE
    local set, unset = {key, 'state', state}, {key}
    local function put(field, value) set[#set + 1], set[#set + 2] = field, value end
    local function drop(field) if record[field] then unset[#unset + 1] = field end end
    for i = 1, #records, 2 do put($HANDLER .. records[i], records[i + 1]) end
    if what.error then put('error', what.error) else drop('error') end
    for name, cause in pairs(what.causes or NOTHING) do put($BLAMED .. name, cause) end
    for name in pairs(what.absolved or NOTHING) do
        if not (what.causes or NOTHING)[name] then drop($BLAMED .. name) end
    end
    drop('holder')
    attempts = (tonumber(attempts) or 1) - (what.unspent and 1 or 0)
    if is_open or what.unspent or attempts > 1 then put('attempts', attempts) else drop('attempts') end
    if is_open then
        put('fence', string.format('%.0f', fence + 1))  -- So that a repetition does not settle it once more.
        if state == $WAITING then put('due', now + (what.wait or 0)) end
        if what.pending then put($PENDING, what.pending) end
    else
        put('settled', now_text)
        for _, field in ipairs(CLOSED_WITHOUT) do drop(field) end
        if state == $DONE then drop('seen') end
        if state ~= $UNHANDLED then drop($ONLY) elseif what.only then put($ONLY, what.only) end
    end
    call('HSET', unpack(set))
    if #unset > 1 then call('HDEL', unpack(unset)) end
    if is_open then
        if state == $ACCEPTED then  -- Handed back: to the head of the queue, where it came from.
            unless_odd('LPUSH', jobs, job)
            set_status(job, 'queued')
        elseif since ~= '' then
            unless_odd('ZADD', scheduled, (now + (what.wait or 0)) / 1000, job)
            set_status(job, 'scheduled')
        end
        unless_odd('ZADD', opened, is_count(received) and received or now, id)
        unless_odd('ZADD', open, now, id)
    else
        call('PEXPIREAT', key, forgotten)
        if state == $DONE and sealed == '1' then gone[#gone + 1] = SNAPSHOT .. id end
        if since ~= '' then gone[#gone + 1] = 'rq:job:' .. job end
        closes = closes or unless_odd('ZADD', state == $UNHANDLED and unhandled .. (type or '') or dead, now, id)
    end
    if listened() then
        publish(id, state, type, resource, {
            attempt = attempts, error = what.error or '', wait = what.wait,
            age = is_count(received) and now - received or nil,
        })
    end
    local one = {id = id, resource = resource, latest = latest, follow = follow == '1', what = what, is_open = is_open,
                 locked = locked, closes = closes, gone = gone, reply = {1}}
    settled[#settled + 1] = one
    return one.reply
end

-- The later of two states of a resource, in each part; of the second we do not know who has written it.
local function later(one, other)
    local old_rank, old_updated = latest_of(other)
    if not old_rank then return one end
    local rank, updated = latest_of(one)
    return string.format('%d:%.0f', math.max(rank, old_rank), math.max(updated, old_updated))
end

-- Give up the claims of what has been settled; remember which states of their resources handlers have seen, unless
-- they have seen later ones; and take from the open events what is open no more.
local function release()
    local ids, gone, closed, resources, keys = {}, {}, {}, {}, {}
    for _, one in ipairs(settled) do
        ids[#ids + 1] = one.id
        for _, key in ipairs(one.gone) do gone[#gone + 1] = key end
        if one.closes then closed[#closed + 1] = one.id end
        if one.locked then resources[#resources + 1] = one.resource end
        if one.resource and one.latest ~= '' then keys[#keys + 1] = RESOURCE .. one.resource end
    end
    if #resources > 0 then call('HDEL', locks, unpack(resources)) end
    unless_odd('ZREM', leases, unpack(ids))
    local found = {}
    for place, value in ipairs(#keys > 0 and call('MGET', unpack(keys)) or {}) do found[keys[place]] = value end
    for _, one in ipairs(settled) do
        if one.resource and one.latest ~= '' then
            local latest = RESOURCE .. one.resource
            found[latest] = later(one.latest, found[latest])
            call('SET', latest, found[latest], 'PXAT', latest_forgotten)
        end
    end
    if #gone > 0 then call('DEL', unpack(gone)) end
    if #closed > 0 then
        unless_odd('ZREM', opened, unpack(closed))
        unless_odd('ZREM', open, unpack(closed))
    end
end

-- Count failures, and have what follows begin. It is settled, whatever becomes of that: the reconciler finds what stays
-- parked.
local function go_on()
    local waiting, claims = {}, {}
    for _, one in ipairs(settled) do
        if next(one.what) then pcall(explain, one.id, one.what, one.is_open) end
        if one.resource then waiting[#waiting + 1] = parked .. one.resource end
    end
    if #waiting == 0 or call('EXISTS', unpack(waiting)) == 0 then return end
    for _, one in ipairs(settled) do
        local ok, following = pcall(let_next, one.resource, one.follow)
        if ok and following then
            claims[#claims + 1] = following
            one.following = following
        end
    end
    if not pcall(hold, claims, who) then return end
    for _, one in ipairs(settled) do add_to(one.reply, one.following or {}) end
end

local ended, replies = {}, {}

-- Run the operations from there on, settlements or all others; where it stopped.
local function run(i, settlements)
    while ARGV[i] and (ARGV[i] == 'settle') == settlements do
        local last = i + 1 + ARGV[i + 1]
        local ok, reply = pcall(write[ARGV[i]], unpack(ARGV, i + 2, last))
        if not ok then reply = {err = type(reply) == 'table' and reply.err or tostring(reply)} end
        replies[#replies + 1] = type(reply) == 'table' and reply or {reply}
        i = last + 1
    end
    return i
end

-- A Redis that is full allows a script everything once it has written something: begin with what needs no memory.
local i = FIRST
while ARGV[i] == 'settle' do
    ended[#ended + 1] = ARGV[i + 6] .. ':' .. ARGV[i + 5]
    i = i + 2 + ARGV[i + 1]
end
if #ended > 0 then unless_odd('ZREM', started, unpack(ended)) end
local rest = run(FIRST, true)
if #settled > 0 then
    release()
    pcall(go_on)
end
run(rest, false)
local flat = {}
for _, reply in ipairs(replies) do
    flat[#flat + 1] = reply.err and reply or #reply
    add_to(flat, reply)
end
return flat
