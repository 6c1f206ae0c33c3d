-- Put an open event back into RQ's queue if no worker has it and nothing else would bring it there.
--
-- The caller has checked that the job is not in the queue, because a script would walk through the queue for each event.
-- A record that cannot be read is set aside, and a settlement that was broken off is completed.
--
-- ARGV: webhook-id; job's id; ms that an event may be on its way from one place to the next; a number from 0 to 1, the
--   part of its delay that an event waits after its workers have died; retention in s; LPUSH or RPUSH; then the fields
--   of the job and their values.
-- Reply: 1 if the event was put back, 0 if not, -1 if its record has vanished, or why its record cannot be read.

--! include lock.lua
--! include keys.lua
--! include enqueue.lua
--! include hints.lua
--! include vanished.lua

-- An event that kills its workers waits before it is put back, from the third lapse on: FIRST_DELAY ms at first, and
-- twice as long each time after. It would otherwise meet the same other events again.
local PATIENT_FOR, FIRST_DELAY, LONGEST_DELAY = 2, 5000, 600000

local call = redis.call
local id, job, transit, chance, retention, push = unpack(ARGV)
local event = EVENT .. id

local moved = call('ZSCORE', open, id)
local since = moved and now - moved
if not since or since >= 0 and since < tonumber(transit) then return 0 end  -- The clock may have gone back since.
local lease = call('ZSCORE', leases, id)
if lease and tonumber(lease) > now then return 0 end
local record, reason = record_of(id)
local fence, lapses
if record then fence, lapses = last_claim(id, record) end

-- Remove the event from the open ones, and release its claim.
local function leave()
    if fence then call('ZREM', started, job .. ':' .. fence) end
    call('DEL', 'rq:job:' .. job)
    call('ZREM', leases, id)
    unlock(id, record and record.resource)
    call('ZREM', delayed, id)
    call('ZREM', open, id)
end

if not record then
    if reason then
        call('ZADD', unreadable, now, id)
        call('EXPIRE', event, retention)
        if call('TYPE', event).ok == 'hash' then
            call('HSET', event, 'state', $UNREADABLE, 'error', 'Unreadable: ' .. reason)
            call('HDEL', event, 'holder', 'fence', 'lapses', 'due')
        end
    end
    local has_vanished = not reason and moved ~= '0'  -- An erasure that was cut has moved the event to 0.
    if has_vanished then note_vanished(id) end
    leave()
    return reason or has_vanished and -1 or 0
end
local state = record.state
if state ~= $ACCEPTED and state ~= $WAITING then  -- Its settlement or its replay was broken off.
    local lists = {[$DEAD] = dead, [$DATA_GONE] = dead, [$QUARANTINED] = quarantined, [$UNREADABLE] = unreadable,
                   [$UNHANDLED] = unhandled .. record.type}
    if call('TTL', event) < 0 then call('EXPIRE', event, retention) end
    if lists[state] then call('ZADD', lists[state], 'NX', now, id) end
    if state ~= $UNHANDLED then
        for field in pairs(record) do
            if after_prefix($PROGRESS, field) then call('HDEL', event, field) end
        end
    end
    leave()
    return 0
end
if record.due and record.due + transit > now then return 0 end
if lease and tonumber(lapses or 0) > PATIENT_FOR then
    local delay = math.min(LONGEST_DELAY, FIRST_DELAY * 2 ^ (lapses - PATIENT_FOR - 1))
    if now < lease + delay * chance then return 0 end
end
local holder = holder_of(record.resource)
if holder and holder ~= id then return 0 end
call('ZADD', delayed, 'GT', record.received, id)
call('ZREM', leases, id)
call('ZREM', scheduled, job)
call('ZREM', failed, job)
call('LREM', intermediate, 0, job)
forget_executions(job, fence)
remember(id)
if not holder then unlock(id, record.resource) end
call('HDEL', event, 'due', 'holder')
call('PERSIST', event)  -- A settlement that was broken off may have let it expire.
call('ZREM', unreadable, id)
enqueue(push, {id}, {job}, {unpack(ARGV, 7)})
if urgent_types[record.type] then push_urgent(job) end
return 1
