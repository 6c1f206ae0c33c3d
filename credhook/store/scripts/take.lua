-- How a worker takes events from the queue and claims them: urgent ones first, up to their share, then whatever is
-- next. If the process has nothing under way and there is a suspect, it gets that one and nothing else.
--
-- Wants `who`, for whom events are claimed; see claim_event.lua.
--
-- Defines: take.

--! include claim_event.lua
--! include event_of_job.lua
--! include urgent.lua

local MOST_DUE = 500       -- Due retries that one call moves from RQ's schedule to the queue.
local MOST_SUSPECTS = 100  -- Suspects that one call looks at to find one that can be worked on.
local LONGEST_NAME = 600   -- Bytes of a job's id beyond which it is none of ours. Ours have 522 at most.

local claims, odd = {}, {}

local function queue_due_retries()
    for _, job in ipairs(unless_odd('ZRANGEBYSCORE', scheduled, '-inf', now / 1000, 'LIMIT', 0, MOST_DUE) or {}) do
        redis.call('ZREM', scheduled, job)
        local id, data = event_of(job)
        if data then
            redis.call('HSET', 'rq:job:' .. job, 'status', 'queued')
            redis.call('RPUSH', jobs, job)
            if id then
                redis.call('ZADD', open, 'XX', now, id)
                -- It has been due: should the clock go back, it would be in the queue and nobody could claim it.
                unless_odd('HDEL', EVENT .. id, 'due')
                if is_urgent(unless_odd('HGET', EVENT .. id, 'type')) then hint(urgent, job) end
            end
        end
    end
end

-- Take a job whose id is too long to be passed around out of RQ's reach. Returns the beginning of the id, for the log.
local function set_aside(job, digest)
    if redis.call('EXISTS', 'rq:job:' .. job) == 1 then
        redis.call('RENAME', 'rq:job:' .. job, refused .. digest)
        redis.call('EXPIRE', refused .. digest, $FAILURE_TTL)
    end
    return string.sub(job, 1, 32)
end

local function take_job(job, is_hint)
    -- Of most jobs the name says whose they are.
    local named = event_in(job)
    if named and claim_into(claims, named, job, who) ~= 'missing' then return end
    local id, data = event_of(job)
    if not data then return end  -- Settled since an earlier look at its hint, or lost: the reconciler sees to that.
    if id then
        if claim_into(claims, id, job, who) == 'missing' then redis.call('DEL', 'rq:job:' .. job) end
    elseif not is_hint then
        if #job > LONGEST_NAME then
            job = set_aside(job, redis.sha1hex(job))
        else
            unless_odd('LPUSH', intermediate, job)
        end
        odd[#odd + 1] = job
        odd[#odd + 1] = data
    end
end

local function take_up_to(number, list, most)
    while #claims < number and most > 0 and not oversized do
        local popped = unless_odd('LPOP', list, math.min(number - #claims, most))
        if not popped then return end
        most = most - #popped
        for place, job in ipairs(popped) do
            if oversized then  -- Enough for once.
                for back = #popped, place, -1 do redis.call('LPUSH', list, popped[back]) end
                return
            end
            take_job(job, list == urgent)
        end
    end
end

local function take_suspect()
    who.alone = true
    for _ = 1, MOST_SUSPECTS do
        local job = #claims == 0 and unless_odd('ZPOPMIN', solitary)
        if not (job and job[1]) then break end
        take_job(job[1], true)
    end
    who.alone = false
end

-- Take so many events, of which a share urgent before all others; `idle` is '1' if the process has nothing under way.
-- Returns in one list ms until the next retry is due, or -1; 1 if there are suspects, else 0; how many entries the jobs
-- have that only Python can read; these, each followed by its data; and the claims.
local function take(wanted, share, idle)
    claims, odd = {}, {}
    queue_due_retries()
    if idle == '1' then take_suspect() end
    if #claims == 0 then
        wanted = tonumber(wanted)
        local most = wanted * 10 + 100
        take_up_to(tonumber(share), urgent, most)
        take_up_to(wanted, jobs, most)
        take_up_to(wanted, urgent, most)
    end
    hold(claims, who)
    local due = unless_odd('ZRANGE', scheduled, 0, 0, 'WITHSCORES') or {}
    local reply = {due[2] and math.max(0, math.ceil(due[2] * 1000 - now)) or -1,
                   (unless_odd('ZCARD', solitary) or 0) > 0 and 1 or 0, #odd}
    add_to(reply, odd)
    for _, got in ipairs(claims) do add_to(reply, got) end
    return reply
end
