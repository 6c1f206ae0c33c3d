-- Bring forward times that lie too far ahead because Redis's clock was set back.
--
-- An event moves at the present, so an event that has moved in the future shows that the clock went back since. Its due
-- times are brought forward by the same time: no retry waits longer than it was told to. A lease lasts no longer than a
-- new lease would, and no heartbeat lies in the future.
--
-- ARGV: lease in ms; then webhook-id and job's id of open events that may have moved in the future.
-- Reply: how many events were brought forward.

--! include keys.lua
--! include expiring.lua

local LEASES = 2000  -- Leases that one call shortens.

local heartbeats = prefix .. 'heartbeats'
local ahead = '(' .. string.format('%.0f', now + $CLOCK_SLACK_MS)

-- Let no score of the set be higher than `most`.
local function limit(set, above, most)
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', set, above, '+inf', 'LIMIT', 0, LEASES)) do
        redis.call('ZADD', set, 'XX', most, member)
    end
end

local function bring_forward(id, job)
    local score = tonumber(redis.call('ZSCORE', open, id) or 0)
    local moved = math.abs(score)  -- Below 0 if the event is postponed.
    if moved <= now + $CLOCK_SLACK_MS then return 0 end
    local key = EVENT .. id
    local function earlier(due) return string.format('%.0f', math.min(due, math.max(now, due - (moved - now)))) end
    for field, value in pairs(by_field(if_hash('HGETALL', key) or {})) do
        local attempts, due, chosen = string.match(value, '^(%d+) (%d+)(.*)$')
        if field == 'due' and string.find(value, '^%d+$') then
            redis.call('HSET', key, 'due', earlier(value))
            redis.call('ZADD', scheduled, 'XX', earlier(value) / 1000, job)
            if redis.call('ZSCORE', delayed, id) == value then redis.call('ZADD', delayed, earlier(value), id) end
        elseif due and due ~= '0' and string.sub(field, 1, #$PENDING) == $PENDING then
            redis.call('HSET', key, field, attempts .. ' ' .. earlier(due) .. chosen)
        end
    end
    redis.call('ZADD', open, 'XX', score < 0 and -now or now, id)  -- Last, so that a call that was cut is repeated.
    return 1
end

local most_lease = string.format('%.0f', now + ARGV[1])
limit(leases, '(' .. most_lease, most_lease)
limit(heartbeats, ahead, now_text)
local number = 0
for i = 2, #ARGV, 2 do number = number + bring_forward(ARGV[i], ARGV[i + 1]) end
return number
