"""platform.lua on a clock of its own: a fleet and a platform that allows so many calls in each second.

The simulation is one script, so Redis runs it as it runs platform.lua. A local `redis` stands for the server: a table
of keys that expire on the simulation's clock. No test waits, so a busy machine changes no figure.
"""

from typing import Any

import pytest
from redis import Redis

from credhook.store import lua

#: ARGV: CREDHOOK_RATE, or 0; calls that the platform allows in a second; its Retry-After in ms; seconds that the fleet
#: calls; processes; seconds before, in which the platform refuses every call.
#: Reply: calls that passed, calls that were refused, and the most calls in a second of the platform's clock.
SIMULATION = """
local micros, keys, expiries = 1000000000000000, {}, {}
local redis = {}
local function ms() return math.floor(micros / 1000) end
local function alive(key)
    if expiries[key] and expiries[key] <= ms() then keys[key], expiries[key] = nil, nil end
    return keys[key]
end
function redis.call(command, key, ...)
    local rest = {...}
    if command == 'GET' then return alive(key) or false end
    if command == 'SET' then keys[key], expiries[key] = tostring(rest[1]), ms() + rest[3] end
    if command == 'EXISTS' then return (alive(key) and 1 or 0) + (alive(rest[1]) and 1 or 0) end
    if command == 'PTTL' then return alive(key) and expiries[key] - ms() or -2 end
    if command == 'PEXPIRE' then expiries[key] = ms() + rest[1] end
end

FRAGMENT

local rate, allowed, retry_after = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local processes, returns = tonumber(ARGV[5]), micros + ARGV[6] * 1000000
local ends = returns + ARGV[4] * 1000000
local passed, refused, most, second, count, answered = 0, 0, 0, 0, 0, {}
local function call_platform(process)
    local this = math.floor(micros / 1000000)
    if this ~= second then second, count, answered = this, 0, {} end
    count = count + 1
    most = math.max(most, count)
    if count <= allowed and micros >= returns then
        passed, answered[process] = passed + 1, (answered[process] or 0) + 1
    else
        refused = refused + 1
        local estimate = math.max(1, answered[process] or 0) * processes
        pause_platform('p', retry_after, '429', estimate, rate)
    end
end

-- The processes take turns. Each claims an event every 10 ms if it may, and always finds an event.
local process = 0
while micros < ends do
    local pause, bucket = limits_of('p', rate, 0, micros)
    local wait = bucket and wait_for_token(bucket, micros) or 0
    if pause > 0 or wait > 0 then
        micros = micros + math.max(pause * 1000, wait)
    else
        if bucket then take_tokens(bucket, 1, micros) end
        process = process % processes + 1
        call_platform(process)
        micros = micros + math.floor(10000 / processes)
    end
end
return {passed, refused, most}
"""


def simulate(
    redis: Redis, *, rate: float, allowed: int, retry_after: int, processes: int, seconds: int = 300, refusing: int = 0
) -> Any:
    script = SIMULATION.replace("FRAGMENT", lua.load("platform"))
    return redis.eval(script, 0, rate, allowed, retry_after * 1_000, seconds, processes, refusing)


@pytest.mark.parametrize("rate", [1, 3, 50])
def test_rate_is_used_and_never_exceeded(redis_client: Redis, rate: int) -> None:
    passed, refused, most = simulate(redis_client, rate=rate, allowed=rate, retry_after=5, processes=4, seconds=60)
    assert refused == 0
    assert most <= rate
    assert passed >= 0.9 * 60 * rate


@pytest.mark.parametrize("retry_after", [1, 5])
@pytest.mark.parametrize(("allowed", "processes"), [(3, 4), (20, 4)])
def test_pace_uses_what_the_platform_allows(
    redis_client: Redis, allowed: int, processes: int, retry_after: int
) -> None:
    passed, refused, _ = simulate(redis_client, rate=0, allowed=allowed, retry_after=retry_after, processes=processes)
    assert passed >= 0.6 * 300 * allowed
    assert refused <= 40


def test_pace_corrects_a_rate_that_is_too_high(redis_client: Redis) -> None:
    passed, refused, _ = simulate(redis_client, rate=30, allowed=3, retry_after=5, processes=4)
    assert passed >= 0.6 * 300 * 3
    assert refused <= 40


def test_pace_returns_after_a_platform_that_refuses_everything(redis_client: Redis) -> None:
    passed, _, _ = simulate(redis_client, rate=0, allowed=50, retry_after=5, processes=4, refusing=600)
    assert passed >= 0.25 * 300 * 50
