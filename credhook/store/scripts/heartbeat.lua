-- RQ's records of who is working on a job. Only RQ's own tools read them.
--
-- They are written once a job has been worked on for so long that its lease is renewed: most are done before anybody
-- could have looked. Until then RQ knows from its list of started jobs.
--
-- Defines: beat, shown.

--! include now.lua
--! include unless_odd.lua
--! include keys.lua

-- Milliseconds, and part of the lease, for which no claim is renewed: half of what worker/queue/leases.py waits, since
-- clocks differ. What is left of an earlier renewal expires.
local NOT_SHOWN, PART_NOT_SHOWN = 500, 8

-- Keep the records of this execution, which began then, in ms, alive from now on; `started_at` and `time` are when it
-- began and the time now as RQ writes them.
local function beat(job, execution, began, started_at, time, worker)
    local record, executions = 'rq:execution:' .. job .. ':' .. execution, 'rq:executions:' .. job
    local until_then = now / 1000 + $RQ_PATIENCE
    unless_odd('HSET', 'rq:job:' .. job, 'status', 'started', 'started_at', started_at, 'worker_name', worker,
               'last_heartbeat', time)
    unless_odd('HSET', record, 'id', execution, 'created_at', began / 1000, 'last_heartbeat', now / 1000,
               'worker_name', worker)
    unless_odd('EXPIRE', record, $RQ_PATIENCE)
    unless_odd('ZADD', executions, until_then, execution)
    unless_odd('EXPIRE', executions, $RQ_PATIENCE)
    unless_odd('ZADD', started, until_then, job .. ':' .. execution)
end

-- The keys by which RQ may know of this execution: none if it is as young as most are when they end.
local function shown(job, execution, began, lease)
    if began == '' or now - began < math.min(NOT_SHOWN, lease / PART_NOT_SHOWN) then return {} end
    return {'rq:execution:' .. job .. ':' .. execution, 'rq:executions:' .. job}
end
