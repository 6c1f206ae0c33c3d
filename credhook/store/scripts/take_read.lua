-- Claim the events of jobs that take.lua could not read and Python could.
--
-- KEYS: as in keys.lua.
-- ARGV: lease in ms, worker's name, its token; then the id of each job and its webhook-id.
-- Reply: the claims, in one list.

--! include claim_event.lua

local who = {lease = ARGV[1], name = ARGV[2], token = ARGV[3]}
local claims = {}
for i = 4, #ARGV, 2 do
    local job, id = ARGV[i], ARGV[i + 1]
    unless_odd('LREM', intermediate, 0, job)
    if claim_into(claims, id, job, who) == 'missing' then redis.call('DEL', 'rq:job:' .. job) end
end
hold(claims, who)
local reply = {}
for _, got in ipairs(claims) do add_to(reply, got) end
return reply
