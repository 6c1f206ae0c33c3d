-- Take events from the queue and claim them: urgent ones first, up to their share, then the next ones. Poison candidates
-- wait for a process that takes nothing else, so that they hold up no other event.
--
-- A job's id says which event it is for, so that nothing of the job is read. A job that is not ours is moved out of RQ's
-- reach.
--
-- During a pause of the platform no event is claimed. Otherwise each claim takes a token, for the fetch of its details.
--
-- ARGV: lease in ms; worker's name; how many events; how many of them urgent; 'none', 'only' or 'all': which poison
--   candidates the process takes;
--   platform's key, or '' to claim without regard to it; CREDHOOK_RATE, or 0; longest wait of a call for a token in
--   microseconds; tokens of earlier claims that were not needed.
-- Reply: ms until the next retry is due, or -1; 1 if poison candidates wait, else 0; the beginning of the id of each job
--   that was refused; the claims, see claim_event.lua; ms that the platform is paused for; microseconds until there is
--   a token; 1 if calls need tokens, else 0.

--! include claim_event.lua
--! include enqueue.lua
--! include hints.lua
--! include platform.lua

local MOST_TRIED = 250  -- Due retries that one call queues, jobs that it looks at, and claims that it returns.
local MOST_CANDIDATES = 100  -- Poison candidates that one call looks at to find a claimable event.

local worker = {lease = ARGV[1], name = ARGV[2]}
local wanted, share, candidates = math.min(tonumber(ARGV[3]), MOST_TRIED), tonumber(ARGV[4]), ARGV[5]
local platform, rate, longest, unused = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local micros = time[1] * 1000000 + time[2]
local claims, refusals = {}, {}
local pause, bucket = 0, nil
local left = math.min(wanted * 10 + 100, MOST_TRIED)

local function refuse(job)
    if redis.call('EXISTS', 'rq:job:' .. job) == 0 then return end
    redis.call('EXPIRE', 'rq:job:' .. job, $FAILURE_TTL)
    redis.call('RENAME', 'rq:job:' .. job, refused .. job)
    refusals[#refusals + 1] = string.sub(job, 1, 64)
end

local function take_job(job)
    local id = event_of(job)
    if not id then return refuse(job) end
    local got = claim(id, job, worker)
    if type(got) == 'table' then
        claims[#claims + 1] = got
    elseif got == 'settled' or got == 'missing' then
        redis.call('DEL', 'rq:job:' .. job)
    end
end

local function take_up_to(number, list)
    while #claims < number and left > 0 do
        local popped = redis.call('LPOP', list, math.min(number - #claims, left))
        if not popped then return end
        left = left - #popped
        for _, job in ipairs(popped) do take_job(job) end
    end
end

if platform ~= '' then
    pause, bucket = limits_of(platform, rate, longest, micros)
    if bucket and unused > 0 then take_tokens(bucket, -unused, micros) end
    wanted = pause > 0 and 0 or bucket and math.min(wanted, tokens_in(bucket, micros)) or wanted
    share = math.min(share, wanted)
end

-- Queue the retries that are due.
for _, job in ipairs(redis.call('ZRANGEBYSCORE', scheduled, '-inf', now / 1000, 'LIMIT', 0, MOST_TRIED)) do
    redis.call('ZREM', scheduled, job)
    local id = event_of(job)
    if not id then
        refuse(job)
    else
        enqueue('RPUSH', {id}, {job})
        -- It has been due: if the clock goes back, nothing else would let the event be claimed.
        redis.pcall('HDEL', EVENT .. id, 'due')
        if urgent_types[redis.pcall('HGET', EVENT .. id, 'type')] then push_urgent(job) end
    end
end
worker.alone = candidates ~= 'none'
if worker.alone and wanted > 0 then
    for _ = 1, MOST_CANDIDATES do
        local job = redis.call('ZPOPMIN', isolated)[1]
        if not job then break end
        take_job(job)
        if #claims > 0 then break end
    end
end
if candidates ~= 'only' then
    take_up_to(share, urgent)
    take_up_to(wanted, jobs)
    take_up_to(wanted, urgent)
end
hold(claims, worker)
if bucket and #claims > 0 then take_tokens(bucket, #claims, micros) end
local due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
return {
    due and math.max(0, math.ceil(due * 1000 - now)) or -1, redis.call('EXISTS', isolated), refusals, claims,
    pause, bucket and wait_for_token(bucket, micros) or 0, bucket and 1 or 0,
}
