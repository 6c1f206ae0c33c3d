-- The locks of resources: which event of a resource a worker holds, and by which claim.
--
-- They are one hash: resource -> "<webhook-id> <fence> <lapses> <worker's name>". The lapses are the event's claims that
-- no settlement has ended, this claim among them. An event's record learns of a claim when the claim ends. Until then
-- only the lock knows it. A fence of 0 keeps the lock for an event whose worker has died, so that no later event
-- overtakes it. The end of that time, in ms, then stands in place of the name.

--! include keys.lua
--! include expiring.lua

-- Return webhook-id, fence, lapses and the worker's name, or nothing if the resource is not locked.
local function lock_of(resource)
    local lock = redis.call('HGET', locks, resource)
    if lock then return string.match(lock, '^(.+) (%d+) (%d+) (%S*)$') end
end

-- Return the fence of the event's last claim, the event's lapses if that claim lapses, and true if the event has the lock.
-- The record is read if its fence is at least as high as that of the lock: it was written later.
local function last_claim(id, record)
    local locked_by, fence, lapses = lock_of(record.resource)
    if locked_by == id and tonumber(fence) > tonumber(record.fence or 0) then return fence, lapses, true end
    return record.fence, record.lapses, locked_by == id
end

local function has_lease(id)
    return tonumber(redis.call('ZSCORE', leases, id) or 0) > now
end

-- Return the event that has the lock now: its lease runs, or the lock is kept for it.
local function holder_of(resource)
    local id, fence, _, kept_until = lock_of(resource)
    if id and (has_lease(id) or fence == '0' and tonumber(kept_until) > now) then return id end
end

-- Keep in the event's record what its lock says of a claim that has lapsed, unless the record knows of a later one.
local function remember(id)
    local state, resource, last_fence = unpack(redis.call('HMGET', EVENT .. id, 'state', 'resource', 'fence'))
    if state ~= $ACCEPTED then return end
    local locked_by, fence, lapses, holder = lock_of(resource)
    if locked_by == id and tonumber(fence) > tonumber(last_fence or 0) then
        redis.call('HSET', EVENT .. id, 'fence', fence, 'lapses', lapses, 'holder', holder)
    end
end

-- Remove the job from RQ's started jobs: the entry of the claim with this fence, and those of RQ's own workers.
local function forget_executions(job, fence)
    if fence then redis.call('ZREM', started, job .. ':' .. fence) end
    for _, execution in ipairs(redis.call('ZRANGE', 'rq:executions:' .. job, 0, -1)) do
        redis.call('ZREM', started, job .. ':' .. execution)
        redis.call('DEL', 'rq:execution:' .. job .. ':' .. execution)
    end
    redis.call('DEL', 'rq:executions:' .. job)
end

-- Free the lock if the event has it.
local function unlock(id, resource)
    if resource and lock_of(resource) == id then redis.call('HDEL', locks, resource) end
end
