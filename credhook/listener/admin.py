"""The admin listener of receiver and worker: health, readiness with each failing check by name, and metrics.

It is off unless `CREDHOOK_ADMIN` names an address, and belongs where only operators reach it.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import chain

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Metric
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from credhook.listener.limits import ADMIN_LIMITS
from credhook.listener.server import Connections, Server
from credhook.metrics.counting import exposition
from credhook.metrics.figures import QueueFigures
from credhook.store.health import Check
from credhook.store.lease import ExporterLease

Examine = Callable[[], Awaitable[Sequence[Check]]]

#: Returns figures that are read at each scrape, in addition to the counters.
Figures = Callable[[], Awaitable[Sequence[Metric]]]


def create_admin(
    redis: Redis,
    examine: Examine,
    *,
    queue: str,
    registry: CollectorRegistry = REGISTRY,
    exporter: ExporterLease | None = None,
    others: Sequence[Figures] = (),
) -> Starlette:
    """Create the admin application.

    `exporter`: the lease of the queue's figures; None exports them always. `others`: more figures for each scrape.
    """
    figures: tuple[Figures, ...] = QueueFigures(redis, queue, exporter=exporter), *others

    async def readyz(_: Request) -> Response:
        checks = await examine()
        ready = not any(check.failed for check in checks)
        shown = {check.name: check.verdict for check in checks}
        return JSONResponse({"ready": ready, "checks": shown}, 200 if ready else 503)

    async def metrics(_: Request) -> Response:
        # At the same time: each may wait for Redis as long as Prometheus waits for the whole scrape.
        found = await asyncio.gather(*(ask() for ask in figures))
        return Response(exposition(registry, chain.from_iterable(found)), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/healthz", lambda _: PlainTextResponse("alive\n")),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )


class AdminListener:
    """The admin application on its own port."""

    def __init__(self, address: str) -> None:
        """Bind `host:port` at once, so that a wrong address stops the start.

        Raises:
            OSError: the address is taken or not ours.
        """
        host, _, port = address.rpartition(":")
        self._socket = bind(host.strip("[]"), int(port))

    async def serve(self, app: Starlette, *, beside: Sequence[Callable[[], Coroutine[None, None, None]]] = ()) -> None:
        """Serve until cancelled. Run the `beside` coroutines meanwhile."""
        background = [asyncio.create_task(work()) for work in beside]
        config = uvicorn.Config(
            app, log_config=None, access_log=False, proxy_headers=False, server_header=False, lifespan="off", ws="none"
        )
        try:
            await Server(config, Connections(ADMIN_LIMITS, "admin")).serve(sockets=[self._socket])
        finally:
            for work in background:
                work.cancel()


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket that child processes can inherit.

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
