"""The rate limit's answers decide how many calls are sent: none if Redis does not answer."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeout
from stores import store_on

from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.platform.circuit_breaker import CircuitBreaker
from credhook.worker.platform.shared_circuit import SharedCircuit

SILENCE = [RedisTimeout(), ReadOnlyError(), ConnectionRefusedError()]


class Bucket:
    """A rate limit that answers as the test says."""

    def __init__(self) -> None:
        self.says: Exception | tuple[int, float] = (0, 0.0)

    async def take(self, wanted: int, *, max_wait: float = 0.0) -> tuple[int, float]:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
async def breaker(bucket: Bucket) -> AsyncIterator[CircuitBreaker]:
    async with Redis() as never_connected:
        breaker = CircuitBreaker(
            store_on(never_connected), api_url="http://platform.example", rate=5, clock=lambda: 1_000.0
        )
        breaker._rate_limit = bucket  # type: ignore[assignment]
        breaker._shared = SharedCircuit()
        yield breaker


async def test_as_many_are_admitted_as_the_bucket_gave(breaker: CircuitBreaker, bucket: Bucket) -> None:
    bucket.says = 3, 0.5
    assert await breaker.admit(10) == 3
    assert breaker.retry_in() == 0.5
    assert await breaker.admit(10) == 0


@pytest.mark.parametrize("silence", SILENCE, ids=lambda error: type(error).__name__)
async def test_without_an_answer_of_redis_nothing_is_admitted_and_other_calls_are_refused(
    breaker: CircuitBreaker, bucket: Bucket, silence: Exception
) -> None:
    bucket.says = silence
    with pytest.raises((RedisError, OSError)) as raised:
        await breaker.admit(10)
    assert raised.value is silence
    with pytest.raises(PlatformPaused, match="CREDHOOK_RATE") as refused:
        await breaker.calls.acquire("presentations.get")
    assert refused.value.retry_after == 1.0
    await breaker.fetches.acquire("presentations.get")
    bucket.says = 1, 0.0
    await breaker.calls.acquire("presentations.get")


async def test_what_was_not_admitted_is_still_there_for_a_slow_start(breaker: CircuitBreaker, bucket: Bucket) -> None:
    breaker._slow_start.begin()
    bucket.says = SILENCE[0]
    with pytest.raises(RedisTimeout):
        await breaker.admit(10)
    bucket.says = 1, 0.0
    assert await breaker.admit(10) == 1
