"""A fleet whose platform fails, with a real Redis and real sockets."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis
from structlog.testing import capture_logs

from credhook.store.connection import open_redis
from credhook.store.store import AsyncStore
from credhook.worker.api.errors import ApiError, InvalidResponse, Unauthorized, Unavailable
from credhook.worker.api.models import Presentation
from credhook.worker.api.token import ClientCredentials
from credhook.worker.platform.circuit import THRESHOLD, Phase, PlatformPaused
from credhook.worker.platform.circuit_breaker import PROBE_RETRY_SECONDS, CircuitBreaker
from credhook.worker.platform.limits import FleetLimits, pause_of, platform_key
from credhook.worker.queue.claims import Claims, Taken
from support.platform.scripted_server import credentials
from support.platform.transports import api_over, for_threads, sender_of
from support.redis.redis_server import MortalRedis, configured
from support.store.stores import run_accept, store_on
from support.waiting import until_async
from support.worker.fleet_harness import Answer, Stub
from support.worker.harness import COMPLETED

WELL = Answer(body={"data": {"id": "p", "status": "verified"}})
DOWN = Answer(503)


class Member:
    """One process's breaker, client and claims. Members know of each other only what Redis tells them."""

    def __init__(self, store: AsyncStore, url: str, rate: float | None) -> None:
        self.breaker = CircuitBreaker(store, api_url=url, rate=rate, timeout=5.0)
        self.claims = Claims(store, lease=60.0, worker="w")
        self.api = api_over("libcurl", url, credentials(), guard=self.breaker.acquire, timeout=60.0)
        self.in_thread = for_threads(self.api)

    async def take(self, wanted: int, *, unfetched: int = 0) -> Taken:
        """Claim events as a worker does."""
        self.breaker.return_unused(unfetched=unfetched)
        if not (allowed := self.breaker.allows(wanted, unfetched=unfetched)):
            return Taken((), None)
        taken = await self.claims.take(allowed, platform=self.breaker.for_claims())
        self.breaker.claimed(len(taken.claims), taken.allowance)
        return taken

    async def call(self) -> object:
        return await end_of(self.api.presentations.get("p"))

    async def call_in_thread(self) -> object:
        return await end_of(asyncio.to_thread(self.in_thread.presentations.get, "p"))


async def end_of(call: Awaitable[Presentation]) -> object:
    """Return the status that the call gets, or its error."""
    try:
        return (await call).status
    except ApiError as error:
        return error


@asynccontextmanager
async def member(redis_url: str, url: str, *, rate: float | None = None) -> AsyncIterator[Member]:
    async with open_redis(redis_url) as client:
        one = Member(store_on(client), url, rate)
        try:
            yield one
        finally:
            await one.breaker.aclose()
            await sender_of(one.api).aclose()


@asynccontextmanager
async def members(count: int, redis_url: str, url: str, rate: float | None = None) -> AsyncIterator[list[Member]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(member(redis_url, url, rate=rate)) for _ in range(count)]


def accept(redis: Redis, count: int) -> None:
    """Write down so many events, each of a resource of its own."""
    run_accept(store_on(redis), *((f"m{number}", COMPLETED, f"iss_{number}") for number in range(count)))


@pytest.fixture
def stub(stub: Stub) -> Stub:
    stub.answer = lambda _: WELL
    stub.takes = 0.01
    return stub


async def test_pause_reaches_the_other_processes(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    accept(redis_client, 20)
    stub.answer = lambda _: Answer(503, retry_after="3600")
    async with members(4, redis_url, stub.url) as fleet:
        with capture_logs() as logs:
            error = await fleet[0].call()
            assert isinstance(error, Unavailable)
            assert fleet[0].breaker.pause() > 200  # In memory by the time that the error is seen.
            await fleet[0].breaker.aclose()
            for one in fleet:
                assert (await one.take(5)).claims == ()
                for refused in (await one.call(), await one.call_in_thread()):
                    assert isinstance(refused, PlatformPaused)
                    assert refused.retry_after is not None
                    assert 200 < refused.retry_after < 301
                    assert refused.operation == "presentations.get"
    assert len(stub.calls) == 1
    assert [entry["event"] for entry in logs] == ["platform_paused"]
    assert (logs[0]["cause"], logs[0]["seconds"]) == ("503", pytest.approx(300, abs=60))


async def test_process_sends_one_call_after_a_pause(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    accept(redis_client, 9)
    stub.answer = lambda _: Answer(503, retry_after="1")
    async with members(3, redis_url, stub.url) as fleet:
        await fleet[0].call()
        await fleet[0].breaker.aclose()
        for one in fleet:
            assert (await one.take(5)).claims == ()
        await until_async(lambda: not any(one.breaker.pause() for one in fleet), what="the end of the pause")
        await until_async(lambda: not redis_client.keys("*:pause"), what="its end in Redis")
        stub.answer, stub.takes = lambda _: WELL, 0.5
        for one in fleet:
            assert len((await one.take(5)).claims) == 1
        probes = [asyncio.create_task(one.call()) for one in fleet]
        await until_async(lambda: stub.under_way == 3, what="the probes")
        for one in fleet:
            assert (await one.take(5)).claims == ()
            for refused in (await one.call(), await one.call_in_thread()):
                assert isinstance(refused, PlatformPaused)
                assert refused.retry_after == PROBE_RETRY_SECONDS
        assert await asyncio.gather(*probes) == ["verified"] * 3
        assert {one.breaker.phase for one in fleet} == {Phase.CLOSED}


async def test_cancelled_probe_lets_the_next_call_probe(redis_url: str, stub: Stub) -> None:
    stub.answer = lambda _: Answer(503, retry_after="1")
    async with member(redis_url, stub.url) as one:
        await one.call()
        stub.answer, stub.takes = lambda _: WELL, 0.5
        await until_async(lambda: not one.breaker.pause(), what="the end of the pause")
        await one.breaker.aclose()
        probe = asyncio.create_task(one.call())
        await until_async(lambda: stub.under_way, what="the probe")
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        assert await one.call() == "verified"


async def test_claims_take_no_more_tokens_than_the_rate_leaves(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    accept(redis_client, 9)
    async with members(2, redis_url, stub.url, rate=0.01) as (one, other):
        taken = await one.take(9)
        assert len(taken.claims) == 1
        assert 0 < taken.allowance.wait <= 105
        assert (await other.take(9)).claims == ()


async def test_token_of_an_event_without_a_fetch_serves_another_event(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    accept(redis_client, 2)
    async with member(redis_url, stub.url, rate=0.01) as one:
        assert len((await one.take(9)).claims) == 1
        assert (await one.take(9, unfetched=1)).claims == ()
        assert len((await one.take(9, unfetched=0)).claims) == 1


async def test_calls_of_handlers_wait_for_their_token(redis_url: str, stub: Stub) -> None:
    async with members(2, redis_url, stub.url, rate=20) as (one, other):
        began = time.monotonic()
        ends = await asyncio.gather(*(call() for _ in range(5) for call in (one.call, other.call_in_thread)))
        assert ends == ["verified"] * 10
        assert time.monotonic() - began > 9 / 20


async def test_token_beyond_the_timeout_refuses_the_call_at_once(redis_url: str, stub: Stub) -> None:
    async with member(redis_url, stub.url, rate=0.01) as one:
        assert await one.call() == "verified"
        for refused in (await one.call(), await one.call_in_thread()):
            assert isinstance(refused, PlatformPaused)
            assert refused.retry_after is not None
            assert 50 < refused.retry_after <= 105  # The whole wait: the call did not wait for a part of it.
            assert "CREDHOOK_RATE" in str(refused)


async def test_calls_use_no_tokens_during_a_pause(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    redis_client.set(platform_key(stub.url, "credhook") + ":pause", "60000 500", px=60_000)
    async with members(2, redis_url, stub.url, rate=50) as (one, other):
        assert isinstance(await one.call(), PlatformPaused)
        assert (await other.take(1)).claims == ()
    assert not redis_client.keys("*:bucket")


async def test_healthy_calls_ask_redis_no_more_than_once_a_second(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    stub.takes = 0.0
    async with member(redis_url, stub.url) as one:
        await one.call()
        before, began = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"], time.monotonic()
        for _ in range(50):
            await one.call()
            await one.call_in_thread()
        asked = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
        assert asked <= 1 + (time.monotonic() - began)


async def test_without_redis_each_process_goes_by_its_own_calls(tmp_path: Path, stub: Stub) -> None:
    with MortalRedis(tmp_path) as redis:
        async with members(2, redis.url, stub.url) as (one, other):
            redis.kill()
            stub.answer = lambda _: DOWN
            ends = [await one.call() for _ in range(THRESHOLD)]
            assert not any(isinstance(end, PlatformPaused) for end in ends)
            assert isinstance(await one.call(), PlatformPaused)
            assert not isinstance(await other.call(), PlatformPaused)


@pytest.mark.parametrize(
    ("answer", "cause", "says"),
    [
        (
            Answer(200, body=b"<h1>Maintenance</h1>"),
            "not_json",
            "no proxy answers in the platform's place",
        ),
        (Answer(302), "redirect", "redirects to another URL: check CREDHOOK_API_URL"),
    ],
    ids=["page", "redirect"],
)
async def test_answers_in_the_platforms_place_pause_the_fleet(
    redis_url: str, redis_client: Redis, stub: Stub, answer: Answer, cause: str, says: str
) -> None:
    stub.answer = lambda _: answer
    async with members(2, redis_url, stub.url) as (one, other):
        with capture_logs() as logs:
            ends = [await one.call() for _ in range(THRESHOLD)]
            await one.breaker.aclose()
        assert all(isinstance(end, InvalidResponse) and end.cause == cause for end in ends)
        assert isinstance(await other.call(), PlatformPaused)
    assert [(line["cause"], says in line["hint"]) for line in logs if line["event"] == "platform_paused"] == [
        (cause, True)
    ]
    assert pause_of(store_on(redis_client), platform_key(stub.url, "credhook")).cause == cause


async def test_handlers_call_that_is_redirected_pauses_nobody(redis_url: str, stub: Stub) -> None:
    stub.answer = lambda _: Answer(302)
    async with member(redis_url, stub.url) as one:
        for _ in range(2 * THRESHOLD):
            with pytest.raises(InvalidResponse, match="redirects are refused"):
                await one.api.request("GET", "/users/")
        assert one.breaker.pause() == 0


async def test_full_redis_takes_a_pause(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    stub.answer = lambda _: Answer(429, retry_after="60")
    async with members(2, redis_url, stub.url) as (one, other):
        with configured(redis_client, "maxmemory", "1"):
            await one.call()
            await one.breaker.aclose()
            assert isinstance(await other.call(), PlatformPaused)


async def test_longer_pause_stays(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    key = platform_key(stub.url, "credhook")
    async with open_redis(redis_url) as client:
        limits = FleetLimits(store_on(client), stub.url, rate=None, longest_wait=5)
        await limits.pause(60, "503", answers=0)
        assert (await limits.pause(5, "500", answers=0)).before > 50
    pause = pause_of(store_on(redis_client), key)
    assert (pause.cause, pause.seconds > 50) == ("503", True)


async def test_429_names_the_rate_that_passed(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    key = platform_key(stub.url, "credhook")
    stub.answer = lambda call: WELL if call.total <= 3 else Answer(429, retry_after="60")
    redis_client.zadd("credhook:credhook:heartbeats", {"w1": 1, "w2": 1})
    async with member(redis_url, stub.url) as one:
        with capture_logs() as logs:
            for _ in range(4):
                await one.call()
            await one.breaker.aclose()
    passed = pause_of(store_on(redis_client), key).passed
    assert passed in {2.0, 4.0, 6.0}  # A second of the clock may have ended meanwhile.
    assert logs[-1]["passed_per_second"] == passed
    assert f"about {passed} requests/s have passed; set CREDHOOK_RATE" in logs[-1]["hint"]


async def test_clock_that_is_set_back_prolongs_no_pause(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    accept(redis_client, 1)
    key = platform_key(stub.url, "credhook")
    redis_client.set(f"{key}:pause", "4000 503", px=3_600_000)  # As after a step of an hour.
    assert pause_of(store_on(redis_client), key).seconds == 4.0
    async with member(redis_url, stub.url) as one:
        assert (await one.take(1)).allowance.pause == 4.0
    assert redis_client.pttl(f"{key}:pause") <= 4_000


async def test_clock_that_is_set_back_does_not_empty_the_bucket_for_long(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    accept(redis_client, 1)
    hour_ahead = int((time.time() + 3_600) * 1_000_000)
    redis_client.set(platform_key(stub.url, "credhook") + ":bucket", hour_ahead)
    async with member(redis_url, stub.url, rate=10) as one:
        assert 0 < (await one.take(1)).allowance.wait <= 5.2


async def test_clock_that_is_set_back_prolongs_no_pace(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    key = platform_key(stub.url, "credhook")
    redis_client.set(f"{key}:pace", "605000 2.0", px=3_600_000)
    async with member(redis_url, stub.url) as one:
        assert (await one.take(1)).allowance.limited
    assert redis_client.pttl(f"{key}:pace") <= 605_000


async def test_resource_that_is_refused_pauses_nobody(redis_url: str, stub: Stub) -> None:
    """Neither 401, however often it comes, nor 403 says that the platform fails."""
    refusals = {"bad": Answer(401), "forbidden": Answer(403)}
    stub.answer = lambda call: refusals.get(call.resource, WELL)
    auth = ClientCredentials(f"{stub.url}/token", "me", "s3cret")
    async with (
        member(redis_url, stub.url) as one,
        api_over("libcurl", stub.url, auth, guard=one.breaker.acquire) as api,
    ):

        async def refused(resource: str, times: int) -> None:
            for _ in range(times):
                with pytest.raises(Unauthorized) as caught:
                    await api.presentations.get(resource)
                assert caught.value.status == refusals[resource].status

        await refused("bad", 2 * THRESHOLD)
        assert (await api.presentations.get("p")).id == "p"
        await refused("forbidden", 2 * THRESHOLD)
        assert one.breaker.pause() == 0
