-- The locks of resources: which event of a resource a worker has, and by which claim.
--
-- Wants `locks`, their hash, and `leases`.
--
-- Defines: lock_of, last_claim, runs, remember, unlock.

--! include credhook.ledger/now.lua
--! include credhook.ledger/readable.lua
--! include credhook.ledger/unless_odd.lua

-- The event that has the lock, or had it when its worker died, the fence of its claim, the attempts so far and the
-- worker's token; nothing if there is no lock, or none of ours.
local function lock_of(resource)
    local lock = unless_odd('HGET', locks, resource or '')
    if not lock then return end
    local id, fence, attempts, token = string.match(lock, '^([!-~]+) (%d+) (%d+) ([!-~]*)$')
    if is_count(fence) and is_count(attempts) then return id, fence, attempts, token end
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

-- Keep in the event's record what its lock says of a claim that has lapsed, unless the record knows of a later one.
local function remember(id)
    local resource, known = unpack(unless_odd('HMGET', $EVENT .. id, 'resource', 'fence') or {})
    local locked_by, fence, attempts, token = lock_of(resource)
    if locked_by == id and tonumber(fence) > (tonumber(known) or 0) then
        redis.call('HSET', $EVENT .. id, 'fence', fence, 'attempts', attempts, 'holder', token)
    end
end

-- Free the lock that the event has, which is that of its resource, or any where its record says none.
local function unlock(id, resource)
    for _, one in ipairs(resource and {resource} or unless_odd('HKEYS', locks) or {}) do
        if lock_of(one) == id then redis.call('HDEL', locks, one) end
    end
end
