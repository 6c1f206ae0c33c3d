-- How an event gets into RQ's queue.

--! include keys.lua
--! include expiring.lua

-- Put events into the queue, at its end (RPUSH) or its head (LPUSH). `fields`: the fields of the new jobs and their values;
-- nil if the jobs exist, and then an event that is no longer open is not opened again.
local function enqueue(push, ids, job_ids, fields)
    local moved, job_keys = {}, {}
    for place = 1, #job_ids do
        local before = 2 * place
        moved[before - 1], moved[before] = now_text, ids[place]
        job_keys[place] = 'rq:job:' .. job_ids[place]
    end
    if fields then
        redis.call('ZADD', open, unpack(moved))
        redis.call('DEL', unpack(job_keys))
        redis.call('HSET', job_keys[1], unpack(fields))
        for place = 2, #job_keys do redis.call('COPY', job_keys[1], job_keys[place]) end  -- 2.4 us, and HSET takes 4.4.
        redis.call('SADD', 'rq:queues', jobs)  -- For RQ's tools alone.
    else
        redis.call('ZADD', open, 'XX', unpack(moved))
    end
    redis.call(push, jobs, unpack(job_ids))
end
