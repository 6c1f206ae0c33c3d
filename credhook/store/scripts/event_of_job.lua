-- Which event a job is for, read from its data as `job_data` in credhook/store writes it.
--
-- Defines: event_of, oversized.

--! include unless_odd.lua

local oversized = false  -- Whether a job was met that is larger than any of ours.

-- The webhook-id and the job's data. The id is nil if we did not write the job like this: it is a stranger's, or RQ has
-- packed it anew. The data is nil if there is no such job, and '' if it is too large: each look at it would copy it.
local function event_of(job)
    local data = unless_odd('HGET', 'rq:job:' .. job, 'data')
    if not data then return nil, nil end
    if #data > $LONGEST_JOB then
        oversized = true
        return nil, ''
    end
    if string.find(job, '[^%w_-]') then return nil, data end  -- No job of ours has such an id.
    if string.sub(data, 1, 3) ~= '\120\1\1' then return nil, data end  -- No zlib stream of one stored block.
    local ok, content = pcall(cjson.decode, string.sub(data, 8, -5))
    if not ok or type(content) ~= 'table' or #content ~= 4 then return nil, data end
    local name, instance, arguments, named = unpack(content)
    if name ~= $JOB_FUNCTION or instance ~= cjson.null or type(named) ~= 'table' or next(named) then
        return nil, data
    end
    if type(arguments) ~= 'table' then return nil, data end
    if not next(arguments) and string.sub(job, 1, 2) == 'e-' then return string.sub(job, 3), data end
    if #arguments ~= 1 or type(arguments[1]) ~= 'string' then return nil, data end
    return arguments[1], data
end
