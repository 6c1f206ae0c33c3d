"""A process that does nothing but call a platform, as a worker would fetch: one of a fleet, in test_platform.py.

python caller.py <Redis URL> <API URL> <rate or 0> <calls at once>
"""

import asyncio
import math
import sys
from collections import Counter
from contextlib import suppress

from redis.asyncio import Redis
from redis.exceptions import RedisError
from stores import store_on

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError
from credhook.worker.api.token import ClientCredentials, Token
from credhook.worker.platform.circuit_breaker import CircuitBreaker


def credentials() -> ClientCredentials:
    """Ours, with a token already."""
    credentials = ClientCredentials("http://127.0.0.1:1/token", "me", "s3cret")
    credentials._token = Token("t", renew_at=math.inf)
    return credentials


async def fetch_for_ever(breaker: CircuitBreaker, api: AsyncApi, under_way: Counter[str]) -> None:
    """Fetch whatever is admitted, counting the calls that have not ended yet."""
    while True:
        admitted = 0
        with suppress(RedisError, OSError):
            admitted = await breaker.admit(1)
        if admitted:
            under_way["calls"] += 1
            with suppress(ApiError):
                await api.presentations.get("p")
            under_way["calls"] -= 1
        else:
            await asyncio.sleep(max(0.005, breaker.retry_in()))


async def main(redis_url: str, api_url: str, rate: str, at_once: str) -> None:
    async with Redis.from_url(redis_url) as redis:
        breaker = CircuitBreaker(store_on(redis), api_url=api_url, rate=float(rate) or None, timeout=5.0)
        api = AsyncApi(api_url, credentials(), guard=breaker.fetches, timeout=60.0)
        async with api, asyncio.TaskGroup() as group:
            group.create_task(breaker.watch())
            for _ in range(int(at_once)):
                group.create_task(fetch_for_ever(breaker, api, Counter()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
