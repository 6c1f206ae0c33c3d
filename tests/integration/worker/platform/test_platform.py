"""A fleet whose platform fails, with a real Redis and real sockets."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from structlog.testing import capture_logs

from credhook.store.connection import open_redis
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import ApiError, Unauthorized, Unavailable
from credhook.worker.api.models import Presentation
from credhook.worker.api.token import ClientCredentials
from credhook.worker.handlers.registry import Registry
from credhook.worker.platform.circuit import THRESHOLD, Circuit, PlatformPaused
from credhook.worker.platform.circuit_breaker import CircuitBreaker
from credhook.worker.platform.shared_circuit import circuit_key
from credhook.worker.wiring import build_worker
from support.platform.scripted_server import credentials
from support.redis.redis_server import MortalRedis
from support.store.stores import store_on
from support.waiting import until_async
from support.worker.attempts import told
from support.worker.fleet_harness import Answer, Stub

WELL = Answer(body={"data": {"id": "p", "status": "verified"}})
DOWN = Answer(500)


class Member:
    """One process's condition and clients; several in one process know of each other only what Redis tells them."""

    def __init__(self, breaker: CircuitBreaker, url: str) -> None:
        self.breaker = breaker
        self.fetching = AsyncApi(url, credentials(), guard=breaker.fetches, timeout=60.0)
        self.calling = AsyncApi(url, credentials(), guard=breaker.calls, timeout=60.0)
        self.in_thread = SyncApi(self.calling)

    async def call(self) -> object:
        return await end_of(self.calling.presentations.get("p"))

    async def fetch(self) -> object:
        return await end_of(self.fetching.presentations.get("p"))

    async def call_in_thread(self) -> object:
        return await end_of(asyncio.to_thread(self.in_thread.presentations.get, "p"))


async def end_of(call: Awaitable[Presentation]) -> object:
    """Return the status that the call gets, or its error."""
    try:
        return (await call).status
    except ApiError as error:
        return error


@asynccontextmanager
async def member(redis_url: str, url: str, *, rate: float | None = None, watches: bool = True) -> AsyncIterator[Member]:
    async with open_redis(redis_url) as client:
        one = Member(CircuitBreaker(store_on(client), api_url=url, rate=rate, timeout=5.0), url)
        watching = asyncio.create_task(one.breaker.watch() if watches else asyncio.sleep(0))
        try:
            yield one
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await one.breaker.aclose()
            await one.fetching.aclose()
            await one.calling.aclose()


@asynccontextmanager
async def members(count: int, redis_url: str, url: str, rate: float | None = None) -> AsyncIterator[list[Member]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(member(redis_url, url, rate=rate)) for _ in range(count)]


@asynccontextmanager
async def paused_briefly(count: int, redis_url: str, stub: Stub) -> AsyncIterator[list[Member]]:
    """Yield a fleet that the platform has asked for a second, which is over."""
    async with members(count, redis_url, stub.url) as fleet:
        stub.answer = lambda _: Answer(429, retry_after="1")
        await fleet[0].call()
        stub.answer = lambda _: WELL
        await until_async(lambda: all(one.breaker.pause() for one in fleet), what="the pause")
        await until_async(lambda: not any(one.breaker.pause() for one in fleet), what="its end")
        yield fleet


@pytest.fixture
def stub(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Stub:
    # If a busy machine makes Redis slow, it is not down.
    monkeypatch.setattr("credhook.worker.platform.shared_circuit.REDIS_TIMEOUT_SECONDS", 20.0)
    stub.answer = lambda _: WELL
    stub.takes = 0.01
    return stub


async def test_a_pause_reaches_the_other_processes(redis_url: str, stub: Stub) -> None:
    stub.answer = lambda _: Answer(503, retry_after="3600")
    async with members(4, redis_url, stub.url) as fleet:
        await asyncio.gather(*(one.breaker.admit(1) for one in fleet))
        with capture_logs() as logs:
            error = await fleet[0].call()
            assert isinstance(error, Unavailable)
            assert fleet[0].breaker.pause() > 200  # In memory by the time that the error is seen.
            await until_async(lambda: all(one.breaker.pause() > 200 for one in fleet), what="the news")
            assert [await one.breaker.admit(5) for one in fleet] == [0, 0, 0, 0]
            for one in fleet:
                assert 200 < one.breaker.retry_in() < 301
                for refused in (await one.call(), await one.call_in_thread(), await one.fetch()):
                    assert isinstance(refused, PlatformPaused)
                    assert refused.retry_after is not None
                    assert 200 < refused.retry_after < 301
                    assert refused.operation == "presentations.get"
    assert len(stub.calls) == 1
    assert [entry["event"] for entry in logs] == ["platform_paused"]
    assert (logs[0]["cause"], logs[0]["seconds"]) == ("503", pytest.approx(300, abs=60))


async def test_each_time_out_of_the_settings_reaches_its_place(redis_url: str, stub: Stub) -> None:
    settings = told(redis_url, stub, FETCH_TIMEOUT=3, HANDLER_TIMEOUT=5, LEASE=7)
    async with build_worker(settings, Registry([])) as parts:
        made = parts.processor
        assert (made.breaker._timeout, made.settings.handler_timeout, made.claims.lease) == (3.0, 5.0, 7.0)


async def test_failures_that_are_published_at_the_same_moment_all_count(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    stub.answer = lambda _: DOWN
    async with members(THRESHOLD - 1, redis_url, stub.url) as fleet:
        await asyncio.gather(*(one.breaker.admit(1) for one in fleet))
        await asyncio.gather(*(one.fetch() for one in fleet))
        await asyncio.gather(*(one.breaker.aclose() for one in fleet))
        assert redis_client.hget(circuit_key(stub.url, "credhook"), "score") == str(THRESHOLD - 1).encode()


async def test_while_one_probes_all_other_calls_are_refused(redis_url: str, stub: Stub) -> None:
    async with paused_briefly(3, redis_url, stub) as fleet:
        prober, *others = fleet
        assert await prober.breaker.admit(10) == 1
        for one in others:
            asked_at = one.breaker.clock()
            assert await one.breaker.admit(10) == 0
            assert asked_at + 0.1 <= one.breaker._ask_again_at < one.breaker.clock() + 1
            for refused in (await one.call(), await one.call_in_thread(), await one.fetch()):
                assert isinstance(refused, PlatformPaused)
                assert refused.retry_after == 0.2  # Without a wait, the event would spend an attempt.
        assert await prober.breaker.admit(10) == 0
        assert len(stub.calls) == 1
        assert await prober.fetch() == "verified"
        await until_async(lambda: not any(one.breaker._circuit.is_open for one in others), what="the good news")
        assert [await one.breaker.admit(10) for one in fleet] == [1, 1, 1]


async def test_a_probe_that_is_cancelled_or_given_back_lets_the_next_try(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    async with paused_briefly(2, redis_url, stub) as (one, other):
        assert await one.breaker.admit(1) == 1
        (probe,) = redis_client.keys("credhook:credhook:platform:*:probe")
        assert -1 != redis_client.pttl(probe) <= 5_000  # A dead prober costs seconds.
        await one.breaker.give_back(1)
        assert await other.breaker.admit(1) == 1
        stub.takes = 0.5
        call = asyncio.create_task(other.fetch())
        await until_async(lambda: stub.under_way, what="the call")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await other.breaker.aclose()
        assert not redis_client.exists(probe)
        assert await one.breaker.admit(1) == 1


async def test_handlers_calls_wait_for_their_turn_from_loop_and_thread(redis_url: str, stub: Stub) -> None:
    async with members(2, redis_url, stub.url, rate=20) as (one, other):
        began = time.monotonic()
        assert await one.breaker.admit(1_000) == 20
        assert one.breaker.retry_in() <= 0.05
        ends = await asyncio.gather(*(call() for _ in range(5) for call in (one.call, other.call_in_thread)))
        assert ends == ["verified"] * 10
        assert time.monotonic() - began > 0.4
        admitted = await other.breaker.admit(1_000)
        assert 30 + admitted <= 20 * (1 + time.monotonic() - began)  # Fetches come after calls that wait.


async def test_a_turn_beyond_the_timeout_is_refused_at_once(redis_url: str, stub: Stub) -> None:
    async with member(redis_url, stub.url, rate=0.01) as one:
        assert await one.call() == "verified"
        for refused in (await one.call(), await one.call_in_thread()):
            assert isinstance(refused, PlatformPaused)
            assert refused.retry_after is not None
            assert 50 < refused.retry_after <= 100  # The whole pause: the call did not wait for a part of it.
            assert "CREDHOOK_RATE" in str(refused)


async def test_a_process_that_was_refused_during_a_probe_may_probe_next_with_a_handlers_call(
    redis_url: str, stub: Stub
) -> None:
    async with paused_briefly(2, redis_url, stub) as (one, other):
        assert await one.breaker.admit(1) == 1
        assert isinstance(await other.call(), PlatformPaused)
        assert await other.breaker.admit(1) == 0
        await one.breaker.give_back(1)
        assert await other.call_in_thread() == "verified"
        await until_async(lambda: one.breaker._slow_start.allows(9) == 1, what="the good news")


async def test_a_probe_lasts_as_long_as_its_call_may_take(redis_url: str, stub: Stub) -> None:
    async with paused_briefly(1, redis_url, stub) as (one,):
        assert await one.breaker.admit(1) == 1
        asked = AsyncMock(side_effect=one.breaker._store.take_probe)  # How long is not seen where time has passed.
        one.breaker._store.take_probe = asked  # type: ignore[method-assign]
        probe = await one.breaker.fetches("presentations.get")
        assert isinstance(await one.call(), PlatformPaused)  # Its own other calls wait for the probe as well.
        probe.ended(200)
        asked.assert_awaited_once_with(6.0)  # The time-out of a call, and a second.


@pytest.mark.parametrize("when", ["before its call", "during its call"])
async def test_a_process_whose_probe_has_lapsed_leaves_the_next_probe_alone(
    redis_url: str, redis_client: Redis, stub: Stub, when: str
) -> None:
    async with paused_briefly(1, redis_url, stub) as (one,):
        calls = len(stub.calls)
        assert await one.breaker.admit(1) == 1
        (probe,) = redis_client.keys("credhook:credhook:platform:*:probe")
        stub.takes = 0.5
        if when == "before its call":
            redis_client.set(probe, "another's", px=60_000)
        call = asyncio.create_task(one.fetch())
        if when == "during its call":
            await until_async(lambda: stub.under_way, what="the call")
            redis_client.set(probe, "another's", px=60_000)
        assert isinstance(await call, PlatformPaused) == (len(stub.calls) == calls) == (when == "before its call")
        await one.breaker.aclose()
        assert redis_client.get(probe) == b"another's"


async def test_failures_during_a_publication_are_published_next(
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


async def test_while_all_is_well_calls_cost_no_round_trip(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    async with member(redis_url, stub.url, watches=False) as one:
        await one.breaker.admit(1)
        before = redis_client.info("stats")["total_commands_processed"]
        for _ in range(50):
            assert await one.breaker.admit(1) == 1
            await one.fetch()
            await one.call()
            await one.call_in_thread()
        assert redis_client.info("stats")["total_commands_processed"] - before == 1  # The question itself.


async def test_without_redis_each_process_goes_by_its_own_calls_and_publishes_later(
    tmp_path: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # A Redis that is down counts as down.
    with MortalRedis(tmp_path) as redis:
        async with members(2, redis.url, stub.url) as (one, other):
            assert [await each.breaker.admit(2) for each in (one, other)] == [2, 2]
            redis.kill()
            with capture_logs() as logs:
                stub.answer = lambda _: DOWN
                ends = [await one.call() for _ in range(THRESHOLD)]
                assert not any(isinstance(end, PlatformPaused) for end in ends)
                assert isinstance(await one.call(), PlatformPaused)
                await until_async(lambda: not one.breaker.pause(), what="the pause's end")
                stub.answer = lambda _: Answer(429, retry_after="600")
                assert await one.breaker.admit(5) == 1
                assert not isinstance(await one.fetch(), PlatformPaused)
                assert await one.breaker.admit(5) == 0
                assert await other.breaker.admit(5) == 5
                assert isinstance(await one.call_in_thread(), PlatformPaused)
            assert [entry["event"] for entry in logs].count("platform_unshared") <= 2
            redis.start()
            await until_async(lambda: other.breaker.pause() > 100, what="the news")
            assert one.breaker.pause() > 100
            redis.kill()
            with capture_logs() as logs:
                await until_async(lambda: "platform_unshared" in str(logs), what="the line about the second outage")


async def test_a_process_that_starts_during_a_pause_keeps_to_it_also_after_redis_has_forgotten_it(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    stub.answer = lambda _: Answer(429, retry_after="600")
    async with member(redis_url, stub.url) as one:
        await one.call()
        await one.breaker.aclose()
        assert redis_client.pttl(circuit_key(stub.url, "credhook")) > 600_000
        redis_client.flushall()
        await until_async(lambda: bool(redis_client.keys()), what="the notice")
        assert one.breaker.pause() > 100
        for first in ("admit", "call"):
            async with member(redis_url, stub.url, rate=5, watches=False) as late:
                if first == "admit":
                    assert await late.breaker.admit(1) == 0
                assert isinstance(await late.call(), PlatformPaused)
                assert 100 < late.breaker.pause() < 360  # It is longer by what an answer of Redis takes.
    assert len(stub.calls) == 1
    assert not redis_client.keys("*:bucket")  # In a pause, calls use up no rate.


async def test_refused_credentials_hold_this_process_until_they_are_accepted(
    async_redis: AsyncRedis, stub: Stub
) -> None:
    now, store = 1_000.0, store_on(async_redis)
    breaker, neighbour = (CircuitBreaker(store, api_url=stub.url, clock=lambda: now) for _ in range(2))
    under_way = await breaker.acquire("x", admitted=True)  # With the token before.
    breaker.token_fetched(Unauthorized("token: refused: 401; check it", operation="token", status=401, retry_after=9.0))
    assert breaker._circuit.score == 1  # The fleet's circuit opens if most processes get no token.
    under_way.ended(200)
    assert (await breaker.admit(5), breaker.pause()) == (0, 9.0)
    assert await neighbour.admit(5) == 5
    now += 3_600  # However long: only a token ends it.
    assert (await breaker.admit(5), breaker.retry_in() > 0, "401" in breaker.credential_error) == (0, True, True)
    breaker.token_fetched(None)
    assert (await breaker.admit(5), breaker.credential_error) == (5, "")
    # A token that the API refuses: then one event tries, and a whole answer ends it.
    (await breaker.acquire("x", admitted=True)).ended(401)
    assert (await breaker.admit(5), breaker.pause() > 0) == (0, True)  # A refusal in a pause costs no attempt.
    now += 11
    breaker.token_fetched(None)
    assert (await breaker.admit(5), await breaker.admit(5)) == (1, 0)
    assert "CREDHOOK_CLIENT_ID" in breaker.credential_error
    (await breaker.acquire("x", admitted=True)).ended(404)
    assert (await breaker.admit(5), breaker.credential_error) == (5, "")
    with capture_logs() as logs:
        for _ in range(THRESHOLD):
            breaker.token_fetched(Unauthorized("token: refused", operation="token", status=401))
        await breaker.aclose()
    assert "see token_refused" in logs[-1]["hint"]


async def test_one_resource_that_is_refused_among_others_pauses_nobody(redis_url: str, stub: Stub) -> None:
    """Neither by 401, however often and whenever it comes, nor by 403."""
    refusals = {"bad": Answer(401), "forbidden": Answer(403)}
    stub.answer = lambda call: refusals.get(call.resource, WELL)
    auth = ClientCredentials(f"{stub.url}/token", "me", "s3cret")
    async with member(redis_url, stub.url) as one, AsyncApi(stub.url, auth, guard=one.breaker.calls) as api:

        async def refused(resource: str, times: int) -> None:
            for _ in range(times):
                with pytest.raises(Unauthorized) as caught:
                    await api.presentations.get(resource)
                assert caught.value.status == refusals[resource].status

        await refused("bad", THRESHOLD // 2)  # As often as one event comes back while a score is remembered.
        for _ in range(3 * THRESHOLD):
            await refused("bad", 1)
            assert (await api.presentations.get("p")).id == "p"
        await refused("forbidden", 2 * THRESHOLD)
        assert one.breaker.pause() == 0


async def test_watching_ends_at_whichever_turn_it_is_cancelled(redis_url: str, stub: Stub) -> None:
    async def ends(after: int) -> None:
        async with open_redis(redis_url) as client:
            watching = asyncio.create_task(CircuitBreaker(store_on(client), api_url=stub.url).watch())
            for _ in range(after):
                await asyncio.sleep(0)
            watching.cancel()
            await asyncio.wait({watching}, timeout=60.0)
            assert watching.cancelled()

    # All at once, so that what swallows a cancellation meets it at many different steps.
    await asyncio.gather(*(ends(after) for after in range(60)))
