-- RQ's records of who is working on a job. Only RQ's own tools read them.
--
-- Defines: beat.

--! include credhook.ledger/now.lua
--! include credhook.ledger/unless_odd.lua
--! include credhook.ledger/worker_keys.lua

-- Seconds without a heartbeat after which RQ's tools take a job for abandoned. The reconciler, which knows more, acts
-- sooner.
local RQ_PATIENCE = 120

-- Keep the records of this execution alive from now on.
local function beat(job, execution)
    local until_then = now / 1000 + RQ_PATIENCE
    unless_odd('EXPIRE', 'rq:execution:' .. job .. ':' .. execution, RQ_PATIENCE)
    unless_odd('ZADD', 'rq:executions:' .. job, until_then, execution)
    unless_odd('EXPIRE', 'rq:executions:' .. job, RQ_PATIENCE)
    unless_odd('ZADD', started, until_then, job .. ':' .. execution)
end
