-- Ask for one call to the platform that no claim has counted: a handler's own call, for example.
--
-- KEYS: platform.
-- ARGV: CREDHOOK_RATE, or 0; longest wait for a token in microseconds.
-- Reply: 1 if the call may be sent, else 0; ms that the platform is paused for; microseconds to wait; 1 if calls need
--   tokens, else 0.

--! include expiring.lua
--! include platform.lua

local platform, rate, longest = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local micros = time[1] * 1000000 + time[2]
local pause, bucket = limits_of(platform, rate, longest, micros)
local permitted, wait = 1, 0
if pause > 0 then
    permitted = 0
elseif bucket then
    permitted, wait = take_call(bucket, longest, micros)
end
return {permitted, pause, wait, bucket and 1 or 0}
