"""The admin listener of receiver and worker: health, readiness with each failing check by name, and metrics.

It is off unless `CREDHOOK_ADMIN` names an address, and belongs where only operators reach it.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

import click
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from credhook.listener.server import Listener, Server
from credhook.metrics.counting import exposition
from credhook.metrics.figures import QueueFigures
from credhook.store.health import Check
from credhook.store.store import AsyncStore

#: The first descriptor that systemd passes to a service with a socket unit.
_FIRST_PASSED: Final = 3
_TCP_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)

Examine = Callable[[], Awaitable[Sequence[Check]]]

#: Returns figures that are read at each scrape, in addition to the counters.
Figures = Callable[[], Awaitable[Sequence[Metric]]]


def create_admin(
    store: AsyncStore,
    examine: Examine,
    *,
    registry: CollectorRegistry,
    others: Sequence[Figures],
    is_alive: Callable[[], bool] = lambda: True,
) -> Starlette:
    """Create the admin application.

    `others`: figures for each scrape, in addition to the queue's. `is_alive`: returns False if a restart would
    help. It returns True in an outage of Redis.
    """
    figures: tuple[Figures, ...] = QueueFigures(store), *others

    def healthz(_: Request) -> Response:
        return PlainTextResponse("alive\n") if is_alive() else PlainTextResponse("stalled\n", 503)

    async def readyz(_: Request) -> Response:
        checks = await examine()
        ready = not any(check.failed for check in checks)
        shown = {check.name: check.verdict for check in checks}
        return JSONResponse({"ready": ready, "checks": shown}, 200 if ready else 503)

    async def metrics(_: Request) -> Response:
        # All at the same time, since each may wait for Redis as long as Prometheus waits for the whole scrape.
        families = await asyncio.gather(*(read() for read in figures))
        text = exposition(registry, chain.from_iterable(families), queue=store.queue)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )


async def serve_admin(listener: socket.socket, app: Starlette) -> None:
    """Serve until cancelled."""
    await Server(Listener(app, "admin", body_bytes=0, connections=64)).serve([listener])


def socket_from_systemd() -> socket.socket | None:
    """Return the listening socket that systemd has passed to this process, or None.

    The socket outlives the process. Connections wait in it while the process is replaced.

    Raises:
        click.ClickException: systemd passed something else.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    with suppress(OSError):  # The descriptor may not be a socket.
        listener = socket.socket(fileno=_FIRST_PASSED)
        is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if os.environ.get("LISTEN_FDS") == "1" and is_listening and listener.family in _TCP_FAMILIES:
            return listener
    raise click.ClickException(
        "systemd should pass one listening TCP socket: write ListenStream=PORT once, and no Accept=yes, in the .socket "
        "unit"
    )


def bind_setting(address: str, variable: str) -> socket.socket:
    """Return a listening socket on `host:port`, which child processes can inherit.

    Raises:
        click.ClickException: the address is taken or not ours. The message names it and the setting.
    """
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio and uvloop switch Nagle's algorithm off only if the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), int(port)))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise click.ClickException(f"cannot listen on {address}: {reason}; set {variable}") from error
    listener.listen(2048)
    listener.set_inheritable(True)
    return listener
