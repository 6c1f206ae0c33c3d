"""A fleet within one process. Members share only what is in Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from caller import credentials
from fleet_harness import Answer, Stub
from stores import store_on
from waiting import until_async

from credhook.store.connection import open_redis
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import ApiError
from credhook.worker.platform.circuit_breaker import CircuitBreaker

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
        """Return the result of a handler's call."""
        return await end_of(self.calling)

    async def call_in_thread(self) -> object:
        def call() -> object:
            try:
                return self.in_thread.presentations.get("p").status
            except ApiError as error:
                return error

        return await asyncio.to_thread(call)

    async def fetch(self) -> object:
        """Return the result of an admitted fetch."""
        return await end_of(self.fetching)


async def end_of(api: AsyncApi) -> object:
    try:
        return (await api.presentations.get("p")).status
    except ApiError as error:
        return error


@asynccontextmanager
async def member(redis_url: str, url: str, *, rate: float | None = None, watches: bool = True) -> AsyncIterator[Member]:
    """Yield a member of the fleet."""
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


async def paused_briefly(fleet: list[Member], stub: Stub) -> None:
    """Let the platform have asked for a second, which is over."""
    stub.answer = lambda _: Answer(429, retry_after="1")
    await fleet[0].call()
    stub.answer = lambda _: WELL
    await until_async(lambda: all(one.breaker.pause() for one in fleet), what="the pause")
    await until_async(lambda: not any(one.breaker.pause() for one in fleet), what="its end")
