"""What attempts are made with, put together for one event loop: the same for every kind of worker."""

import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis

from credhook import tracing
from credhook.logs import flush_lines
from credhook.store.connection import open_redis
from credhook.worker.api.client import AsyncApi, transport_from
from credhook.worker.api.http.exchange import Transport
from credhook.worker.api.oauth.credentials import ClientCredentials
from credhook.worker.api.oauth.tokens import TokenCache
from credhook.worker.api.threads import SyncApi
from credhook.worker.attempt.lifespan import Lifespan
from credhook.worker.attempt.processor import Processor
from credhook.worker.attempt.slots import CALLS, Slot
from credhook.worker.attempt.snapshots import Snapshots
from credhook.worker.handlers.registry import Registry
from credhook.worker.platform.circuit_breaker import CircuitBreaker
from credhook.worker.platform.shared_token import SharedTokens
from credhook.worker.queue.claim import Worker
from credhook.worker.queue.claims import Claims
from credhook.worker.queue.semaphore import Semaphores
from credhook.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class Parts:
    """A worker's parts on one event loop. Two of them have work of their own: `processor.leases` and `breaker`.

    Attributes:
        redis: the ledger's client.
        claims: the ledger as this worker sees it.
        breaker: what the fleet knows of the platform.
        lifespan: what plugins keep; it has to be started, and is stopped at the end.
        processor: what makes the attempts.
        new_slot: makes the clients of one event at a time. All share connections, credentials and trust.
    """

    redis: Redis
    claims: Claims
    breaker: CircuitBreaker
    lifespan: Lifespan
    processor: Processor
    new_slot: Callable[[], Slot]


@asynccontextmanager
async def assembled(
    settings: WorkerSettings, registry: Registry, *, worker: Worker | None = None, token: TokenCache | None = None
) -> AsyncIterator[Parts]:
    """Put the parts together, on the running loop; at the end, close them.

    `worker`: who takes events, None where RQ itself takes the jobs; `token`: the process's copy of the access token,
    where it outlives the loop.
    """
    redis = open_redis(settings.redis_url.get_secret_value())
    claims = Claims(
        redis,
        queue=settings.queue,
        lease=settings.lease,
        retention=settings.retention,
        worker=worker,
        before=flush_lines,  # What a handler has logged is written before its event is settled.
    )
    breaker = CircuitBreaker.from_settings(redis, settings)
    snapshots = Snapshots(redis, settings.snapshot_key)
    auth = ClientCredentials.from_settings(settings, tokens=SharedTokens.from_settings(redis, settings, token))
    transport: Transport = transport_from(settings)
    traces = None
    if (tracer := tracing.tracer()) is not None:
        traces = importlib.import_module("credhook.worker.tracing.attempts").AttemptTracer(tracer, queue=settings.queue)
        transport = importlib.import_module("credhook.worker.tracing.requests").TracedTransport(tracer, transport)

    fetching = AsyncApi.from_settings(settings, auth=auth, transport=transport, guard=breaker.fetches)

    def new_slot() -> Slot:
        calling = AsyncApi.from_settings(settings, auth=auth, transport=transport, guard=breaker.calls, at_once=CALLS)
        return Slot(fetching, calling, SyncApi(calling))

    lifespan = Lifespan(registry.plugins)
    semaphores = Semaphores(redis, settings.queue)
    states = lifespan.states
    processor = Processor(
        settings, claims, registry, breaker, snapshots=snapshots, semaphores=semaphores, states=states, tracer=traces
    )
    try:
        yield Parts(redis, claims, breaker, lifespan, processor, new_slot)
    finally:
        await lifespan.stop()
        await auth.aclose()
        await transport.aclose()
        await breaker.aclose()
        await redis.aclose()
