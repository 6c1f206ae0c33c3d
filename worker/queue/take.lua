-- Take events from the queue and claim them: urgent ones first, up to their share, then whatever is next. If the
-- process has nothing under way and there is a suspect, it gets that one and nothing else.
--
-- KEYS: as in worker_keys.lua.
-- ARGV: how many events; how many of them urgent before all others; '1' if the process has nothing under way; lease in
--   ms; worker's name; its token; the time as RQ writes it.
-- Reply: the claims; the jobs that only Python can read, each followed by its data; ms until the next retry is due, or
--   -1; 1 if there are suspects, else 0.

--! include credhook.ledger/claim_event.lua
--! include credhook.ledger/event_of_job.lua
--! include credhook.ledger/urgent.lua

local MOST_DUE = 500       -- Due retries that one call moves from RQ's schedule to the queue.
local MOST_SUSPECTS = 100  -- Suspects that one call looks at to find one that can be worked on.
local LONGEST_NAME = 512   -- Bytes of a job's id beyond which it is none of ours. Ours have 258 at most.

local call = redis.call
local wanted, share, idle = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local who = {lease = ARGV[4], name = ARGV[5], token = ARGV[6], time = ARGV[7]}
local claims, odd = {}, {}

local function queue_due_retries()
    for _, job in ipairs(unless_odd('ZRANGEBYSCORE', scheduled, '-inf', now / 1000, 'LIMIT', 0, MOST_DUE) or {}) do
        call('ZREM', scheduled, job)
        local id, data = event_of(job)
        if data then
            call('HSET', 'rq:job:' .. job, 'status', 'queued')
            call('RPUSH', jobs, job)
            if id then
                call('ZADD', open, 'XX', now, id)
                if is_urgent(unless_odd('HGET', $EVENT .. id, 'type')) then hint(urgent, job) end
            end
        end
    end
end

-- Take a job whose id is too long to be passed around out of RQ's reach. Returns the beginning of the id, for the log.
local function set_aside(job, digest)
    if call('EXISTS', 'rq:job:' .. job) == 1 then
        call('RENAME', 'rq:job:' .. job, refused .. digest)
        call('EXPIRE', refused .. digest, $FAILURE_TTL)
    end
    return string.sub(job, 1, 32)
end

local function take(job, is_hint)
    local id, data = event_of(job)
    if not data then return end  -- Settled since an earlier look at its hint, or lost: the reconciler sees to that.
    if id then
        claim_into(claims, id, job, who)
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

local function take_up_to(number, list)
    local left = wanted * 10 + 100
    while #claims < number and left > 0 and not oversized do
        local job = unless_odd('LPOP', list)
        if not job then return end
        take(job, list == urgent)
        left = left - 1
    end
end

local function take_suspect()
    who.alone = true
    for _ = 1, MOST_SUSPECTS do
        local job = #claims == 0 and unless_odd('ZPOPMIN', solitary)
        if not (job and job[1]) then break end
        take(job[1], true)
    end
    who.alone = false
end

queue_due_retries()
if idle then take_suspect() end
if #claims == 0 then
    take_up_to(share, urgent)
    take_up_to(wanted, jobs)
    take_up_to(wanted, urgent)
end
local due = unless_odd('ZRANGE', scheduled, 0, 0, 'WITHSCORES') or {}
return {claims, odd, due[2] and math.max(0, math.ceil(due[2] * 1000 - now)) or -1,
        (unless_odd('ZCARD', solitary) or 0) > 0 and 1 or 0}
