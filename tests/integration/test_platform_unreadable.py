"""Somebody else has written where the fleet shares what it knows of the platform: work goes on, and the log says so."""

import time
from collections.abc import Callable, Iterator
from hashlib import sha256

import pytest
from members import Stub, member, members, paused_briefly, serving
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from structlog.testing import capture_logs
from waiting import until_async

from credhook.metrics.counting import flush
from credhook.worker.metrics import UNREADABLE
from credhook.worker.platform.breaker import PlatformPaused
from credhook.worker.platform.circuit_store import CircuitStore

DAY = 86_400


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving() as platform:
        yield platform


def key(stub: Stub, suffix: str = "") -> str:
    """The circuit's key, or one that belongs to it."""
    return f"credhook:platform:{sha256(stub.url.encode()).hexdigest()[:16]}{suffix}"


def counted(what: str) -> float:
    flush()
    return float(UNREADABLE.metric.labels(what)._value.get())


def hash_of(redis: Redis, name: str) -> object:
    return redis.hset(name, "a", "b")


def list_of(redis: Redis, name: str) -> object:
    return redis.lpush(name, "a")


def text(value: str) -> Callable[[Redis, str], object]:
    return lambda redis, name: redis.set(name, value)


def far_pause(redis: Redis, name: str) -> object:
    return redis.set(name, f"1 0 1 {time.time() + DAY:.3f} {int(time.time() * 1e6)}")


def far_bucket(redis: Redis, name: str) -> object:
    return redis.set(name, str(int((time.time() + DAY) * 1e6)))


def lasting(redis: Redis, name: str) -> object:
    return redis.set(name, "somebody", px=DAY * 1_000)


GARBAGE = [hash_of, list_of, text("garbage"), text(""), text("x" * 1_000_000)]
IDS = ["hash", "list", "text", "empty", "long"]


@pytest.mark.parametrize("put", [*GARBAGE, far_pause, text("1 0 1 inf 7")], ids=[*IDS, "far pause", "endless pause"])
async def test_garbage_for_the_circuit_stops_nobody_and_is_replaced_by_the_next_pause(
    redis_url: str, redis_client: Redis, stub: Stub, put: Callable[[Redis, str], object], request: pytest.FixtureRequest
) -> None:
    put(redis_client, key(stub))
    before = counted("circuit")
    async with members(2, redis_url, stub.url) as (one, other):
        with capture_logs() as logs:
            for _ in range(3):
                assert [await each.breaker.admit(5) for each in (one, other)] == [5, 5]
                assert await one.call() == await other.call_in_thread() == "verified"
                await one.breaker._store.load()
            stub.answer = lambda _: (429, {"Retry-After": "600"})
            await one.call()
            await until_async(lambda: other.breaker.pause() > 300, what="the news")
    events = [entry["event"] for entry in logs]
    assert "platform_unshared" not in events
    assert redis_client.type(key(stub)) == b"string"
    assert 0 < redis_client.ttl(key(stub)) < 1_260
    if "empty" not in request.node.callspec.id:
        assert events.count("shared_unreadable") == counted("circuit") - before == 2  # Once by each.


@pytest.mark.parametrize(
    "put",
    [hash_of, list_of, text("x"), lasting, text("")],
    ids=["hash", "list", "without an end", "for a day", "empty"],
)
async def test_garbage_for_the_probe_keeps_nobody_from_trying(
    redis_url: str, redis_client: Redis, stub: Stub, put: Callable[[Redis, str], object]
) -> None:
    async with members(2, redis_url, stub.url) as (one, other):
        await paused_briefly([one, other], stub)
        put(redis_client, key(stub, ":probe"))
        with capture_logs() as logs:
            assert await one.breaker.admit(5) == 1
            assert await other.breaker.admit(5) == 0
            assert await one.fetch() == "verified"
            await until_async(lambda: not other.breaker.retry_in(), what="the good news")
    assert [entry["what"] for entry in logs if entry["event"] == "shared_unreadable"] == ["probe"]
    assert not redis_client.exists(key(stub, ":probe"))


@pytest.mark.parametrize(
    "put",
    [*GARBAGE, far_bucket, text("nan"), text("inf"), text("-1e300")],
    ids=[*IDS, "far", "nan", "inf", "below nothing"],
)
async def test_garbage_for_the_bucket_is_an_empty_debt(
    redis_url: str, redis_client: Redis, stub: Stub, put: Callable[[Redis, str], object]
) -> None:
    async with members(2, redis_url, stub.url, rate=0.01) as (one, other):
        put(redis_client, key(stub, ":bucket"))
        with capture_logs() as logs:
            assert await one.breaker.admit(100) == 1  # As ever.
            assert await other.breaker.admit(100) == 0
            assert 0 < other.breaker.retry_in() <= 100
            assert isinstance(await one.call(), PlatformPaused)
    assert [entry["event"] for entry in logs] == ["shared_unreadable"]
    assert 0 < redis_client.pttl(key(stub, ":bucket")) <= 100_000


async def test_garbage_that_is_published_is_not_heard(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    async with member(redis_url, stub.url) as one, member(redis_url, stub.url) as other:
        await until_async(lambda: redis_client.pubsub_numsub(key(stub))[0][1] == 2, what="the watchers")
        with capture_logs() as logs:
            for message in (b"", b"garbage", b"x 1 0 1", b"\xff\xfe", b"17", b"1" * 100_000, b"17 1 0 1 inf 7"):
                assert redis_client.publish(key(stub), message) == 2
            stub.answer = lambda _: (429, {"Retry-After": "600"})
            await one.call()
            await until_async(lambda: other.breaker.pause() > 300, what="the news")
        assert {entry["what"] for entry in logs if entry["event"] == "shared_unreadable"} <= {"change", "circuit"}
        assert all("inf" not in str(entry) for entry in logs)


async def test_a_debt_from_before_redis_clock_was_set_back_is_forgotten(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    """Then the bucket says that it will be full again in an hour, though it is empty for a second at most."""
    redis_client.set(key(stub, ":bucket"), str(int((time.time() + 3_600) * 1e6)), px=3_600_000)
    async with member(redis_url, stub.url, rate=5) as one:
        assert await one.breaker.admit(1) == 1


async def test_a_long_call_of_another_worker_is_not_taken_for_garbage(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    async with members(1, redis_url, stub.url) as (one,):
        await paused_briefly([one], stub)
        redis_client.set(key(stub, ":probe"), "another", px=50_000)
        assert await one.breaker.admit(1) == 0
        assert redis_client.get(key(stub, ":probe")) == b"another"


async def test_where_calls_may_take_long_so_may_probes(redis_client: Redis, async_redis: AsyncRedis) -> None:
    circuit_store = CircuitStore(async_redis, "http://platform.example", timeout=100.0)
    redis_client.set(circuit_store._probe, "another", px=150_000)
    assert await circuit_store.take_probe(1.0) is False
    redis_client.pexpire(circuit_store._probe, 250_000)
    assert await circuit_store.take_probe(1.0) is True


async def test_a_mended_key_is_named_again_when_it_breaks_again(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    async with member(redis_url, stub.url, watches=False) as one:
        with capture_logs() as logs:
            for value in ("garbage", "other garbage", "", "garbage"):
                redis_client.set(key(stub), value)
                await one.breaker._store.load()
    assert [entry["event"] for entry in logs] == ["shared_unreadable"] * 2
    assert "garbage" not in str(logs)
