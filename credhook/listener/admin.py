"""The admin listener of receiver and worker: health, readiness with each failing check by name, and metrics.

It is off unless `CREDHOOK_ADMIN` names an address, and belongs where only operators reach it.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Gauge, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from credhook.ledger import Index
from credhook.listener.connections import Connections
from credhook.listener.limits import ADMIN
from credhook.listener.server import Server
from credhook.redis.health import Check

Examine = Callable[[], Awaitable[Sequence[Check]]]

_EVENTS: Final = Gauge("credhook_events", "Events in the ledger, by what they wait for.", ["state"])
_QUEUE: Final = Gauge("credhook_queue_length", "Jobs in RQ's queue.")


def gathered(folder: str) -> CollectorRegistry:
    """What several processes count into the folder, and the gauges that each scrape fills."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]  # It ships no types here.
    for gauge in (_EVENTS, _QUEUE):
        registry.register(gauge)
    return registry


def create_admin(redis: Redis, examine: Examine, *, queue: str, registry: CollectorRegistry = REGISTRY) -> Starlette:
    """The admin application.

    Args:
        redis: asked for the ledger's figures at each scrape. Never through RQ's registries: counting them cleans them
            up, and two clean-ups at once enqueue a job twice.
        examine: what readiness means here.
        queue: RQ's queue.
        registry: whose metrics are shown.
    """

    async def readyz(_: Request) -> Response:
        checks = await examine()
        ready = not any(check.failed for check in checks)
        shown = {check.name: check.verdict for check in checks}
        return JSONResponse({"ready": ready, "checks": shown}, 200 if ready else 503)

    async def metrics(_: Request) -> Response:
        try:
            await _ask_ledger(redis, queue)
        except (RedisError, OSError):
            _EVENTS.clear()  # No figure is better than an old one.
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/healthz", lambda _: PlainTextResponse("alive\n")),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )


async def _ask_ledger(redis: Redis, queue: str) -> None:
    index = Index(queue)
    sets = (
        ("open", index.open),
        ("leased", index.leases),
        ("dead", index.dead),
        *(("unhandled", key) for key in index.all_unhandled),
        ("quarantined", index.quarantined),
        ("unreadable", index.unreadable),
    )
    pipeline = redis.pipeline(transaction=False)
    for _, key in sets:
        pipeline.zcard(key)
    pipeline.llen(index.jobs)
    *counts, length = await pipeline.execute(raise_on_error=False)
    _EVENTS.clear()  # A key of another type, that somebody else has written, has no figure.
    for (state, _), count in zip(sets, counts, strict=True):
        if isinstance(count, int):
            _EVENTS.labels(state).inc(count)
    if isinstance(length, int):
        _QUEUE.set(length)


class AdminListener:
    """The admin application on its own port, run beside the process's own work."""

    def __init__(self, address: str) -> None:
        """Bind `host:port` at once, so that a wrong one ends the process before it has begun.

        Raises:
            OSError: the address is taken or not ours.
        """
        host, _, port = address.rpartition(":")
        self._socket = bind(host.strip("[]"), int(port))

    async def serve(self, app: Starlette) -> None:
        """Answer until cancelled."""
        config = uvicorn.Config(
            app, log_config=None, access_log=False, proxy_headers=False, server_header=False, lifespan="off", ws="none"
        )
        await Server(config, Connections(ADMIN, "admin")).serve(sockets=[self._socket])


def bind(host: str, port: int) -> socket.socket:
    """A listening socket that child processes can inherit.

    Raises:
        OSError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio and uvloop switch Nagle's algorithm off only where the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(2048)
    listener.set_inheritable(True)
    return listener
