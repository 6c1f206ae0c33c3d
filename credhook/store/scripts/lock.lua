-- The locks of resources: which event of a resource a worker has, and by which claim.
--
-- Wants `locks`, their hash, and `leases`.
--
-- Defines: lock_of, last_claim, runs, holder_of, remember, keep_lock, unlock.

--! include keys.lua
--! include now.lua
--! include readable.lua
--! include unless_odd.lua

-- The event that has the lock, or had it when its worker died, the fence of its claim, the attempts so far and the
-- worker's token; nothing if there is no lock, or none of ours. With a fence of 0 the lock is kept for an event whose
-- worker has died, so that no later one overtakes it: until then, in ms, which stands in place of the token.
local function lock_of(resource)
    local lock = unless_odd('HGET', locks, resource or '')
    if not lock then return end
    local id, fence, attempts, token = string.match(lock, '^([!-~]+) (%d+) (%d+) ([!-~]*)$')
    if id and #fence < 15 and #attempts < 15 then return id, fence, attempts, token end
end

-- Fence and attempts of the event's last claim, the lock's unless the record has had one as high since; and whether
-- it is the event that has the lock.
local function last_claim(id, record)
    local locked_by, fence, attempts = lock_of(record.resource)
    if locked_by == id and tonumber(fence) > (tonumber(record.fence) or 0) then return fence, attempts, true end
    return record.fence, record.attempts, locked_by == id
end

-- Whether a lease on the event runs. One that ends later than any would is not ours: it would last for ever.
local function runs(id)
    local ends = tonumber(id and redis.call('ZSCORE', leases, id) or 0)
    return ends > now and ends <= now + $LONGEST_LOCK
end

-- The event that has the lock now, whether its lease runs or the lock is kept for it, or nil.
local function holder_of(resource)
    local id, fence, _, kept = lock_of(resource)
    local is_kept = fence == '0' and is_count(kept) and tonumber(kept) > now and tonumber(kept) <= now + $LONGEST_LOCK
    return (is_kept or runs(id)) and id or nil
end

-- Keep in the event's record what its lock says of a claim that has lapsed, unless the record knows of a later one.
local function remember(id)
    local state, resource, known = unpack(unless_odd('HMGET', EVENT .. id, 'state', 'resource', 'fence') or {})
    local locked_by, fence, attempts, token = lock_of(resource)
    if state == $ACCEPTED and locked_by == id and tonumber(fence) > (tonumber(known) or 0) then
        redis.call('HSET', EVENT .. id, 'fence', fence, 'attempts', attempts, 'holder', token)
    end
end

-- Keep the lock for the event, which nobody has any more, for as long as its lease would have lasted.
local function keep_lock(id, resource)
    local ends = redis.call('ZSCORE', leases, id)
    if lock_of(resource) == id and ends then redis.call('HSET', locks, resource, id .. ' 0 0 ' .. ends) end
end

-- Free the lock that the event has, if its record says of which resource. Any other is free once its lease has lapsed.
local function unlock(id, resource)
    if resource and lock_of(resource) == id then redis.call('HDEL', locks, resource) end
end
