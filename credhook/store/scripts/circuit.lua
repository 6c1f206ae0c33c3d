-- Read a platform's circuit, or replace it if nobody else has (compare and set), and tell all processes.
--
-- KEYS: circuit, a hash: version, open, score, trips, until (ms of Redis's clock). It is the channel's name as well.
-- ARGV: nothing to read only. To replace: the version that the caller knows, '' for no circuit; ms that the new circuit
--   lasts, 0 to delete it; open (1 or 0); score; trips; ms until the pause ends.
-- Reply: 1 if replaced, else 0; version, '' for no circuit; open; score; trips; ms until the pause ends.

--! include expiring.lua

local circuit = KEYS[1]
local known, lasts, open, score, trips, pause = unpack(ARGV)
local replaced = 0
if known == (redis.call('HGET', circuit, 'version') or '') then
    replaced = 1
    if lasts == '0' then
        redis.call('DEL', circuit)
    else
        local version = time[1] .. string.format('%06d', time[2])
        write_expiring(circuit, lasts, 'HSET', 'version', version, 'open', open, 'score', score, 'trips', trips,
                       'until', string.format('%.0f', now + pause))
    end
    redis.call('PUBLISH', circuit, 'changed')
end
local found = redis.call('HMGET', circuit, 'version', 'open', 'score', 'trips', 'until')
return {
    replaced, found[1] or '', tonumber(found[2] or 0), tonumber(found[3] or 0), tonumber(found[4] or 0),
    (found[5] or now) - now,
}
