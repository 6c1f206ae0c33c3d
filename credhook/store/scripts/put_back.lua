-- Put an open event back into RQ's queue if nobody has it and nothing else would bring it there. An event with which
-- workers keep dying has to wait for that.
--
-- All of it is judged here, by Redis's clock, except whether the job is in the queue: that would take a walk through
-- the queue for each event, so the caller has looked. On the way, a record that cannot be read is set aside, and a
-- settlement that was broken off is completed.
--
-- KEYS: as in keys.lua.
-- ARGV: webhook-id; job's id; ms that an event may be on its way from one place to the next; attempts after which an
--   event whose worker has died has to wait; which part of that wait, from 0 to 1; retention in s; LPUSH or RPUSH; then
--   the fields of the job and their values.
-- Reply: 1 if the event was put back, 0 if not, or which part of its record cannot be read.

--! include keys.lua
--! include now.lua
--! include readable.lua
--! include unless_odd.lua
--! include urgent.lua

-- Milliseconds that an event whose worker has died waits at most: FIRST_DELAY at first, twice as long each time after,
-- but no longer than LONGEST_DELAY. An event that kills its worker would otherwise meet the same other events again.
local FIRST_DELAY, LONGEST_DELAY = 5000, 600000

local call = redis.call
--! include lock.lua

local id, job, transit, patient, chance, retention, push = unpack(ARGV)
local event, rq_job, executions = EVENT .. id, 'rq:job:' .. job, 'rq:executions:' .. job
local moved = call('ZSCORE', open, id)
local since = moved and now - moved
if not since or since >= 0 and since < tonumber(transit) then return 0 end  -- The clock may have gone back since.
local fields = unless_odd('HMGET', event, 'state', 'type', 'resource', 'received', 'fence', 'attempts', 'due')
local state, type, resource, received, fence, attempts, due = unpack(fields or {})
local wrong = not fields and 'no hash' or unreadable_part(id, state, type, resource, received, fence, attempts, due)
fence, attempts = last_claim(id, {resource = resource, fence = fence, attempts = attempts})

local function leave()
    if fence then unless_odd('ZREM', started, job .. ':' .. fence) end
    call('DEL', rq_job)
    call('ZREM', leases, id)
    unlock(id, resource)
    unless_odd('ZREM', opened, id)
    call('ZREM', open, id)
end

if call('EXISTS', event) == 0 then
    leave()
    return 0
end
local lease = call('ZSCORE', leases, id)
if lease and tonumber(lease) > now then return 0 end
if wrong then
    call('ZADD', unreadable, now, id)
    if fields then
        call('HSET', event, 'state', $UNREADABLE, 'error', 'Unreadable: ' .. wrong)
        call('HDEL', event, 'holder', 'fence', 'attempts', 'due')
    end
    call('EXPIRE', event, retention)
    leave()
    return wrong
end
if state ~= $ACCEPTED and state ~= $WAITING then  -- Its settlement was broken off.
    if call('TTL', event) < 0 then call('EXPIRE', event, retention) end
    if state == $DEAD or state == $DATA_GONE then call('ZADD', dead, 'NX', now, id) end
    if state == $UNHANDLED then call('ZADD', unhandled .. type, 'NX', now, id) end
    leave()
    return 0
end
if due and due + transit > now then return 0 end
if lease and (tonumber(attempts) or 0) > tonumber(patient) then
    local delay = math.min(LONGEST_DELAY, FIRST_DELAY * 2 ^ (attempts - patient - 1))
    if now < lease + delay * chance then return 0 end
end
local holder = holder_of(resource)
if holder and holder ~= id then return 0 end
unless_odd('ZADD', opened, received or now, id)
call('ZADD', open, now, id)
call('ZREM', leases, id)
unless_odd('ZREM', scheduled, job)
unless_odd('ZREM', failed, job)
unless_odd('LREM', intermediate, 0, job)
if fence then unless_odd('ZREM', started, job .. ':' .. fence) end
for _, execution in ipairs(unless_odd('ZRANGE', executions, 0, -1) or {}) do
    unless_odd('ZREM', started, job .. ':' .. execution)
    call('DEL', 'rq:execution:' .. job .. ':' .. execution)
end
remember(id)
if not holder then unlock(id, resource) end
call('HDEL', event, 'due', 'holder')
call('DEL', rq_job, executions)
call('HSET', rq_job, unpack(ARGV, 8))
unless_odd('SADD', 'rq:queues', jobs)
call(push, jobs, job)
if is_urgent(type) then hint(urgent, job) end
return 1
