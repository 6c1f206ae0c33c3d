-- Let deliveries and backfills bring events of a resource that was erased.
--
-- ARGV: the resource.
-- Reply: how many marks were removed.

--! include erased.lua

if not secret then return 0 end
local marks = {mark_of(ARGV[1])}
for type in pairs(known_types) do marks[#marks + 1] = mark_of(type .. ' ' .. ARGV[1]) end
return redis.call('DEL', unpack(marks))
