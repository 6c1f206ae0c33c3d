"""An API that refuses our tokens: the fleet finds out with few calls, waits, and goes on once they are accepted."""

from collections.abc import AsyncIterator

import pytest
from fleet_harness import Answer, Stub, well
from redis.asyncio import Redis
from stores import store_on

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, Unauthorized
from credhook.worker.api.token import ClientCredentials
from credhook.worker.platform.circuit import THRESHOLD
from credhook.worker.platform.circuit_breaker import CircuitBreaker


def credentials(stub: Stub) -> ClientCredentials:
    return ClientCredentials(f"{stub.url}/token", "me", "s3cret")


async def outcome(api: AsyncApi, resource: str = "pre") -> object:
    try:
        return (await api.presentations.get(resource)).status
    except ApiError as error:
        return error


@pytest.fixture
async def breaker(async_redis: Redis, stub: Stub) -> AsyncIterator[CircuitBreaker]:
    breaker = CircuitBreaker(store_on(async_redis), api_url=stub.url, timeout=5.0)
    yield breaker
    await breaker.aclose()


async def test_one_resource_that_is_refused_among_others_pauses_nobody(breaker: CircuitBreaker, stub: Stub) -> None:
    """Neither by 401, however often and whenever it comes, nor by 403."""
    refusals = {"bad": Answer(401), "forbidden": Answer(403)}
    stub.answer = lambda call: refusals.get(call.resource) or well(call)
    async with AsyncApi(stub.url, credentials(stub), guard=breaker.calls) as api:
        for _ in range(THRESHOLD // 2):  # As often as one event comes back while a score is remembered.
            error = await outcome(api, "bad")
            assert isinstance(error, Unauthorized)
            assert error.status == 401
        for _ in range(3 * THRESHOLD):
            for resource in ("bad", "pre"):
                await outcome(api, resource)
        for _ in range(2 * THRESHOLD):
            error = await outcome(api, "forbidden")
            assert isinstance(error, Unauthorized)
            assert error.status == 403
    assert breaker.pause() == 0
