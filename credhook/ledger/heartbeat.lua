-- RQ's records of who is working on a job. Only RQ's own tools read them.
--
-- They are written once a job has been worked on for so long that its lease is renewed: most are done before anybody
-- could have looked. Until then RQ knows from the job and its list of started ones.
--
-- Defines: beat.

--! include credhook.ledger/now.lua
--! include credhook.ledger/unless_odd.lua
--! include credhook.ledger/worker_keys.lua

-- Keep the records of this execution, which began then, in ms, alive from now on.
local function beat(job, execution, began, who)
    local record, executions = 'rq:execution:' .. job .. ':' .. execution, 'rq:executions:' .. job
    local until_then = now / 1000 + $RQ_PATIENCE
    unless_odd('HSET', 'rq:job:' .. job, 'last_heartbeat', who.time)
    unless_odd('HSET', record, 'id', execution, 'created_at', began / 1000, 'last_heartbeat', now / 1000,
               'worker_name', who.name)
    unless_odd('EXPIRE', record, $RQ_PATIENCE)
    unless_odd('ZADD', executions, until_then, execution)
    unless_odd('EXPIRE', executions, $RQ_PATIENCE)
    unless_odd('ZADD', started, until_then, job .. ':' .. execution)
end
