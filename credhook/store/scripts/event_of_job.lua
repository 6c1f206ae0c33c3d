-- Which event a job is for: its id says so, and its data that it is ours.
--
-- Defines: event_in, event_of, oversized.

--! include keys.lua
--! include unless_odd.lua

local oversized = false  -- Whether a job was met that is larger than any of ours.

-- The webhook-id that the id of a job names, or nil if it is none of this queue's.
local function event_in(job)
    local event = string.sub(job, #legible + 1)
    if string.sub(job, 1, #legible) == legible then return event end
    if string.sub(job, 1, #hexed) ~= hexed then return nil end
    return (string.gsub(event, '%x%x', function(byte) return string.char(tonumber(byte, 16)) end))
end

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
    return not next(arguments) and event_in(job) or nil, data
end
