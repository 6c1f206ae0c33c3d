-- Take jobs that were popped and are not ours out of RQ's reach.
--
-- A refused job may be in the queue once more; whoever pops it then finds nothing. Looking for it there would mean a
-- walk through the whole queue for each job: three hundred thousand of them kept Redis busy for hours.
--
-- KEYS: as in keys.lua.
-- ARGV: seconds for which the jobs are kept, then the id of each.
-- Reply: nothing.

--! include unless_odd.lua
--! include keys.lua

for i = 2, #ARGV do
    local job = ARGV[i]
    if redis.call('EXISTS', 'rq:job:' .. job) == 1 then
        redis.call('RENAME', 'rq:job:' .. job, refused .. job)
        redis.call('EXPIRE', refused .. job, ARGV[1])
    end
    unless_odd('LREM', intermediate, 1, job)
end
