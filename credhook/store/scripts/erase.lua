-- Forget events, and all that was kept for their sake.
--
-- The presented data of the event's resource goes as well, even if the resource has other events. The job may still be in
-- RQ's queue: looking for it there would take too long, and the worker that takes it finds nothing.
--
-- One command deletes the record and all that only this event has. Until the end, the event is among the open ones: if
-- the script breaks off before that command, the sweeper puts the event back where it was, and the erasure can be asked
-- for again. If it breaks off afterwards, the sweeper removes the rest but for the entry in the index: see erase.py.
--
-- ARGV: seconds for which the marks last, see erased.lua; a key for their hashes, if there is none; the resource to be
--   erased as a whole, or ''; id of the erasure, and who erases; then webhook-id and job's id of each event, and the state
--   in which it was selected, or '' if its state does not matter.
-- Reply: what became of each event: erased; held, erased while a worker had it; missing; or changed, left since it is
--   no longer in that state.

--! include index.lua
--! include lock.lua
--! include erased.lua

-- Milliseconds after the end of its lease within which a worker is done with an event that it has lost. An RQ worker
-- keeps a job as failed if its record is gone before that.
local NOTICED = 5000

local MOST_ERASURES = 1000  -- Erasures that are remembered.

local lasts, resource_erased, erasure, by = 1000 * ARGV[1], ARGV[3], ARGV[4], ARGV[5]
local counts, has_erased = {}, resource_erased ~= ''

-- The key of the hashes lasts as long as the last mark, also if the retention time was longer when that was left.
-- A full Redis refuses a script whose first write adds data. This one adds none, and an erasure frees memory.
redis.call('PEXPIRE', hash_key, math.max(lasts, redis.call('PTTL', hash_key)))
if not secret then
    secret = ARGV[2]
    redis.call('SET', hash_key, secret, 'PX', lasts)
end
if has_erased then redis.call('SET', mark_of(resource_erased), '', 'PX', lasts) end

local of_events, of_jobs = {delayed, dead, quarantined, unreadable, prefix .. 'vanished'}, {scheduled, failed, isolated}
for type in pairs(known_types) do of_events[#of_events + 1] = unhandled .. type end
local outcomes = {}

local function erase(id, job, selected)
    local key = EVENT .. id
    local fields = if_hash('HGETALL', key)
    local there = not fields or #fields > 0
    local record = by_field(fields or {})
    local state, resource = fields and record.state, record.resource
    if there and selected ~= '' and (state or $UNREADABLE) ~= selected then return 'changed' end
    if record.type and resource and resource ~= '' then
        redis.call('SET', mark_of(record.type .. ' ' .. resource), '', 'PX', lasts)
    end
    local lease = tonumber(redis.call('ZSCORE', leases, id) or 0)
    forget_executions(job, resource and last_claim(id, record) or record.fence)
    if resource then redis.call('ZREM', blocked .. resource, job) end
    -- If the script breaks off before the record goes, no later claim may get this fence.
    if state == $ACCEPTED then remember(id) end
    redis.call('ZREM', leases, id)  -- Before the lock: a worker that settles now has no lease without a lock.
    unlock(id, resource)
    redis.call('PEXPIRE', 'rq:job:' .. job, lease > now and lease - now + NOTICED or 0)
    if there then redis.call('ZADD', open, 0, id) end  -- Moved at 0: if the script breaks off, the event has not vanished.
    for _, set in ipairs(of_events) do redis.call('ZREM', set, id) end
    for _, set in ipairs(of_jobs) do redis.call('ZREM', set, job) end
    redis.call('DEL', key, CONFLICT .. id, HISTORY .. id, 'rq:results:' .. job, SNAPSHOT .. (resource or ''))
    local entry = entry_of(record.received, record.place)
    if entry then
        redis.call('XDEL', by_time, entry)  -- First, since by_resource does not name the event.
        redis.call('ZREM', by_resource, entry)
    end
    redis.call('ZREM', open, id)
    if not there then return 'missing' end
    local type = record.type or $UNREADABLE
    counts[type], has_erased = (counts[type] or 0) + 1, true
    return lease > now and 'held' or 'erased'
end

-- Add the counts to the erasure's entry in the list of erasures. It is the last one, unless another erasure runs as well.
local function note()
    local last = redis.call('LINDEX', erasures, -1)
    local entry = last and cjson.decode(last)
    if not entry or entry.id ~= erasure then
        entry = {id = erasure, at = now, by = by, whole = resource_erased ~= '' and 1 or 0, types = {}}
        redis.call('RPUSH', erasures, cjson.encode(entry))
        redis.call('LTRIM', erasures, -MOST_ERASURES, -1)
    end
    for type, number in pairs(counts) do entry.types[type] = (entry.types[type] or 0) + number end
    redis.call('LSET', erasures, -1, cjson.encode(entry))
end

for i = 6, #ARGV, 3 do outcomes[#outcomes + 1] = erase(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
if resource_erased ~= '' then
    -- Of an event whose record somebody has deleted, only the resource leads to its lock and its job.
    local locked_by = lock_of(resource_erased)
    if locked_by and redis.call('EXISTS', EVENT .. locked_by) == 0 then redis.call('HDEL', locks, resource_erased) end
    redis.call('DEL', blocked .. resource_erased)  -- A hint, if other events of the resource are to stay.
end
if has_erased then note() end
return outcomes
