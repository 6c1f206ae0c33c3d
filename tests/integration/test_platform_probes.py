"""Rare interleavings of the probe with other calls and with messages to the fleet."""

import asyncio

import pytest
from fleet_harness import Stub
from fleet_members import DOWN, WELL, member, members, paused_briefly
from redis import Redis
from waiting import until_async

from credhook.worker.platform.circuit import Circuit, PlatformPaused
from credhook.worker.platform.shared_circuit import circuit_key


@pytest.fixture
def stub(stub: Stub) -> Stub:
    stub.answer = lambda _: WELL
    stub.takes = 0.01
    return stub


async def test_whoever_was_refused_because_another_tries_may_try_next(redis_url: str, stub: Stub) -> None:
    async with members(2, redis_url, stub.url) as (one, other):
        await paused_briefly([one, other], stub)
        assert await one.breaker.admit(1) == 1
        assert isinstance(await other.call(), PlatformPaused)
        assert await other.breaker.admit(1) == 0
        await one.breaker.give_back(1)
        assert await other.call() == "verified"


async def test_a_probe_is_nobody_elses_for_as_long_as_its_call_may_take(redis_url: str, stub: Stub) -> None:
    async with members(2, redis_url, stub.url) as (one, other):
        await paused_briefly([one, other], stub)
        assert await one.breaker.admit(1) == 1
        circuit_store, asked = one.breaker._store, list[float]()
        takes = circuit_store.take_probe

        async def noting(seconds: float) -> bool | None:
            asked.append(seconds)
            return await takes(seconds)

        circuit_store.take_probe = noting  # type: ignore[method-assign]  # How long is not seen where time has passed.
        assert await one.fetch() == "verified"
        assert asked == [6.0]  # The time-out of a call, and a second.


async def test_whoever_is_done_with_a_probe_that_has_lapsed_leaves_the_next_ones_alone(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    async with members(1, redis_url, stub.url) as (one,):
        await paused_briefly([one], stub)
        assert await one.breaker.admit(1) == 1
        (probe,) = redis_client.keys("credhook:credhook:platform:*:probe")
        stub.takes = 0.5
        call = asyncio.create_task(one.fetch())
        await until_async(lambda: stub.under_way, what="the call")
        redis_client.set(probe, "another's", px=60_000)
        await call
        await one.breaker.aclose()
        assert redis_client.get(probe) == b"another's"


async def test_a_probe_that_lapsed_before_its_call_began_is_not_made(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    async with members(1, redis_url, stub.url) as (one,):
        await paused_briefly([one], stub)
        calls = len(stub.calls)
        assert await one.breaker.admit(1) == 1
        (probe,) = redis_client.keys("credhook:credhook:platform:*:probe")
        redis_client.set(probe, "another's", px=60_000)
        assert isinstance(await one.fetch(), PlatformPaused)
        assert len(stub.calls) == calls


async def test_what_happens_while_the_others_are_told_is_told_next(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    stub.answer = lambda _: DOWN
    async with member(redis_url, stub.url, watches=False) as one:
        await one.breaker.admit(1)
        circuit_store = one.breaker._store
        tells, told, goes_on = circuit_store.compare_and_set, asyncio.Event(), asyncio.Event()

        async def slowly(*words: object, **more: object) -> object:
            reply = await tells(*words, **more)  # type: ignore[arg-type]
            told.set()
            await goes_on.wait()
            return reply

        circuit_store.compare_and_set = slowly  # type: ignore[method-assign,assignment]  # A reply that is late.
        await one.fetch()
        await told.wait()
        await one.fetch()
        await one.fetch()
        goes_on.set()
        await one.breaker.aclose()
        assert one.breaker._circuit == Circuit(score=3)
        assert redis_client.hget(circuit_key(stub.url, "credhook"), "score") == b"3"
