-- The event of a job, which the id of the job names; see `job_id` in credhook/store/job.py.
--
-- Defines: event_of.

--! include keys.lua

-- Return the webhook-id, or nil if the job is not one of this queue's.
local function event_of(job)
    local event = string.sub(job, #legible + 1)
    if string.sub(job, 1, #legible) == legible then return event end
    if string.sub(job, 1, #hexed) ~= hexed then return nil end
    return (string.gsub(event, '%x%x', function(byte) return string.char(tonumber(byte, 16)) end))
end
