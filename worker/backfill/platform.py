"""The platform as a reconciliation calls it: one of the fleet, within its rate, and silent while it is left alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from redis.asyncio import Redis

from credhook.worker.api.client import AsyncApi, transport_from
from credhook.worker.api.oauth.credentials import ClientCredentials
from credhook.worker.platform.circuit_breaker import CircuitBreaker
from credhook.worker.platform.shared_token import SharedTokens
from credhook.worker.settings import WorkerSettings


@asynccontextmanager
async def platform(settings: WorkerSettings, redis: Redis, *, share_token: bool) -> AsyncIterator[AsyncApi]:
    """Its API, for the length of the block.

    `share_token`: whether the access token is the fleet's as well, or one of our own that is written nowhere.
    """
    breaker = CircuitBreaker.from_settings(redis, settings)
    tokens = SharedTokens.from_settings(redis, settings) if share_token else None
    auth = ClientCredentials.from_settings(settings, tokens=tokens)
    transport = transport_from(settings)
    watching = asyncio.create_task(breaker.watch())
    try:
        yield AsyncApi.from_settings(settings, auth=auth, transport=transport, guard=breaker.calls)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await auth.aclose()
        await transport.aclose()
        await breaker.aclose()
