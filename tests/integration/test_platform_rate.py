"""The fleet keeps to its rate while Redis stalls or is away: each call was counted first."""

import math
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet_harness import Stub
from fleet_members import WELL, callers, members
from redis.exceptions import RedisError
from redis_server import MortalRedis, mortal_redis
from serving import Process
from waiting import until

from credhook.worker.platform.circuit import PlatformPaused

RATE, AT_ONCE = 50, 5
#: How often something stalls; for how many seconds, more than anybody waits for Redis before a call; and how long not.
STALLS, STALLED, MOVING = 4, 1.5, 0.5


@pytest.fixture
def stub(stub: Stub) -> Stub:
    stub.answer = lambda _: WELL
    stub.takes = 0.01
    return stub


def stall_redis(redis: MortalRedis, processes: list[Process]) -> None:
    """Redis answers late."""
    redis.send_signal(signal.SIGSTOP)
    time.sleep(STALLED)
    redis.send_signal(signal.SIGCONT)


def stall_callers(redis: MortalRedis, processes: list[Process]) -> None:
    """Redis answers in time, but its callers stand still: they have no processor, or were swapped out."""
    redis.send_signal(signal.SIGSTOP)
    time.sleep(MOVING)  # In which all of them ask.
    for process in processes:
        process.pause()
    redis.send_signal(signal.SIGCONT)
    time.sleep(STALLED)
    for process in processes:
        process.resume()


def most_beyond(rate: float, arrivals: list[float]) -> float:
    """Calls beyond so many a second, in the span of time that has most of them."""
    most, least = 0.0, math.inf
    for number, arrival in enumerate(sorted(arrivals)):
        due = number - rate * arrival
        least = min(least, due)
        most = max(most, due + 1 - least)
    return most


@pytest.mark.parametrize("stall", [stall_redis, stall_callers])
def test_a_fleet_keeps_to_the_rate(tmp_path: Path, stub: Stub, stall: Callable[..., None]) -> None:
    with (
        mortal_redis(tmp_path) as redis,
        callers(tmp_path, redis.url, stub.url, rate=RATE, at_once=AT_ONCE) as processes,
    ):
        until(lambda: len(stub.calls) > RATE, what="a bucketful")
        for _ in range(STALLS):
            stall(redis, processes)
            time.sleep(MOVING)
        count = len(stub.calls)
        until(lambda: len(stub.calls) > count + RATE, what="calls after it")
    # One second of calls, and the permitted calls that a busy machine held back: at most all that are under way.
    # And one more, since Redis and the test read different clocks.
    assert most_beyond(RATE, [call.at for call in stub.calls]) <= RATE + len(processes) * AT_ONCE + 1


async def test_without_redis_only_what_was_admitted_is_called_for(tmp_path: Path, stub: Stub) -> None:
    with mortal_redis(tmp_path) as redis:
        async with members(2, redis.url, stub.url, rate=1_000) as (one, other):
            assert [await each.breaker.admit(2) for each in (one, other)] == [2, 2]
            redis.kill()
            for each in (one, other):
                with pytest.raises((RedisError, OSError)):
                    await each.breaker.admit(2)
                for refused in (await each.call(), await each.call_in_thread()):
                    assert isinstance(refused, PlatformPaused)
                assert [await each.fetch() for _ in range(2)] == ["verified"] * 2
            assert len(stub.calls) == 4
            redis.start()
            assert [await each.breaker.admit(2) for each in (one, other)] == [2, 2]
            assert await one.call() == await other.call_in_thread() == "verified"
