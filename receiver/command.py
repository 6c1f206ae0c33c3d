"""`credhook receiver`: serve the application until told to stop, in one process or in several."""

import asyncio
import gc
import os
import socket
import ssl
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from subprocess import Popen
from typing import TYPE_CHECKING, Final, Optional, TypeVar

import click
import structlog
import uvicorn
from prometheus_client import REGISTRY, CollectorRegistry
from redis.asyncio import Redis

from credhook import tracing
from credhook.backoff import Backoff, Waits
from credhook.certificate import remark_on_expiry
from credhook.listener.admin import AdminListener, Examine, bind, create_admin
from credhook.listener.server import Connections, Server
from credhook.metrics.counting import forget, gathered
from credhook.metrics.figures import TargetFigures
from credhook.receiver import metrics
from credhook.receiver.announcement import Announcer
from credhook.receiver.app import create_app
from credhook.receiver.inbox import Inbox
from credhook.receiver.refusals import RefusalLog
from credhook.receiver.settings import ReceiverSettings
from credhook.settings import in_force
from credhook.store import Keys
from credhook.store.connection import open_redis
from credhook.store.health import examine
from credhook.store.lease import ExporterLease
from credhook.supervisor import FOLDER, Supervisor, environment_of, stop_on

if TYPE_CHECKING:
    from credhook.receiver.tracing import DeliveryTracer

log = structlog.get_logger("credhook.receiver")

#: Waits between two checks of Redis while one fails. Otherwise the longest of these waits.
_LOOKS: Final = Backoff(first=0.5, longest=10.0)

#: Seconds that requests under way get after SIGTERM. Redis answers within five or not at all.
_GRACE: Final = 8


@click.command()
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that share the port."
)
@click.option("--fd", type=int, hidden=True, help="Accept from this socket, which the parent process has bound.")
@click.option("--lifeline", type=int, hidden=True, help="Stop when this pipe of the parent's ends.")
def receiver(*, workers: int, fd: int | None, lifeline: int | None) -> None:
    """Accept deliveries: verify, deduplicate, store, acknowledge.

    Everything else is set by environment variables; the table in deploy/README.md lists them.
    """
    settings = ReceiverSettings()
    if fd is not None:
        sys.exit(_serve(settings, socket.socket(fileno=fd), admin=None, lifeline=lifeline))
    if settings.insecure and not settings.keys and settings.path_secret is None:
        log.warning("insecure", reason="CREDHOOK_INSECURE is set: deliveries are accepted without any check")
    remark_on_expiry(settings.tls_certfile, name="CREDHOOK_TLS_CERTFILE", now=datetime.now(UTC))
    listener = _listen(f"{settings.host}:{settings.port}", "HOST and PORT", lambda: bind(settings.host, settings.port))
    address, admin = settings.admin, None
    if address:
        admin = _listen(address, "CREDHOOK_ADMIN", lambda: AdminListener(address))
    port = listener.getsockname()[1]
    log.info("receiver_started", host=settings.host, port=port, workers=workers, settings=in_force(settings))
    code = _supervise(settings, listener, workers, admin) if workers > 1 else _serve(settings, listener, admin)
    log.info("receiver_stopped", code=code)
    sys.exit(code)


L = TypeVar("L")


def _listen(address: str, variable: str, listen: Callable[[], L]) -> L:
    """Bind, or exit with an error that names the address and the setting."""
    try:
        return listen()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise click.ClickException(f"cannot listen on {address}: {reason}; set {variable}") from error


def _serve(
    settings: ReceiverSettings, listener: socket.socket, admin: AdminListener | None, lifeline: int | None = None
) -> int:
    """Serve in this process. Return the exit code."""
    redis = open_redis(settings.redis_url.get_secret_value())
    strict = settings.durability == "strict"
    inbox = Inbox(redis, queue=settings.queue, retention=settings.retention, strict=strict)
    refusals = RefusalLog()
    config = uvicorn.Config(
        create_app(settings, inbox, refusals, tracer=_tracer(settings, inbox)),
        access_log=False,  # It writes paths, and a path may be the secret.
        log_config=None,
        proxy_headers=False,  # We do not use the address or scheme of the client.
        server_header=False,
        ws="none",  # uvicorn would drop the body of a request that asks for an upgrade.
        timeout_graceful_shutdown=_GRACE,
    )
    limits = settings.limits
    if limits.connections < settings.max_connections:
        hint = "raise `ulimit -n`, or lower CREDHOOK_MAX_CONNECTIONS"
        log.warning("fewer_connections", allowed=limits.connections, wanted=settings.max_connections, hint=hint)
    connections = Connections(limits, "public", count=metrics.TURNED_AWAY.add)
    server = Server(config, connections, _tls(settings))
    stop_on(server.handle_exit)

    async def serve() -> int:
        # Start without waiting for Redis: until it answers, deliveries get 503.
        announcer = Announcer(redis, settings, inbox, refusals)
        beside = [asyncio.create_task(each) for each in (_watch(inbox), announcer.keep())]
        if admin:
            beside.append(asyncio.create_task(_administrate(settings, admin, redis, inbox.examine, REGISTRY)))
        if lifeline is not None:
            end_with_parent(lifeline, server)
        await server.serve(sockets=[listener])
        for task in beside:
            task.cancel()
        await announcer.leave()
        return 0 if server.started else 1

    # A full collection of all imported objects would stop the process for 16 to 38 ms, measured.
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        code = runner.run(serve())
    tracing.flush()
    return code


def end_with_parent(lifeline: int, server: uvicorn.Server) -> None:
    """End the server once its parent has died, which held the other end of the pipe."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(lifeline)  # A pipe at its end stays readable: this would run in each turn of the loop.
        server.should_exit = True

    loop.add_reader(lifeline, ended)


def _tracer(settings: ReceiverSettings, inbox: Inbox) -> Optional["DeliveryTracer"]:
    """Return the tracer of deliveries, or None if traces are off."""
    tracing.start("receiver")
    if (tracer := tracing.tracer()) is None:
        return None
    scheme = "https" if settings.tls_certfile else "http"
    from credhook.receiver.tracing import DeliveryTracer

    return DeliveryTracer(tracer, inbox, route=settings.webhook_path, queue=settings.queue, scheme=scheme)


def _tls(settings: ReceiverSettings) -> ssl.SSLContext | None:
    """Return the certificate, which the settings have tried, with the rules of this Python: TLS 1.2 or newer."""
    if not settings.tls_certfile:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings.tls_certfile, settings.tls_keyfile)
    return context


def _supervise(settings: ReceiverSettings, listener: socket.socket, workers: int, admin: AdminListener | None) -> int:
    """Serve in several processes. The parent's admin listener sums their counters."""
    if not admin:
        return supervisor(listener, workers, os.environ).run()
    with tempfile.TemporaryDirectory(prefix="credhook-") as folder:
        threading.Thread(target=_administrate_all, args=(settings, admin, folder), daemon=True).start()
        environment = {**os.environ, FOLDER: folder}
        return supervisor(listener, workers, environment, on_exit=lambda place: forget(place, folder)).run()


def supervisor(
    listener: socket.socket,
    number: int,
    environment: Mapping[str, str],
    *,
    on_exit: Callable[[int], None] = lambda _: None,
) -> Supervisor[Popen[bytes]]:
    """Return the supervisor of receiver processes that accept from one socket.

    The socket outlives a process that dies: other processes accept the waiting connections.
    """

    def start(place: int, lifeline: int) -> Popen[bytes]:
        fd = listener.fileno()
        command = [sys.executable, "-P", "-m", "credhook.receiver", "--fd", str(fd), "--lifeline", str(lifeline)]
        return Popen(command, pass_fds=(fd, lifeline), env=environment_of(environment, place))  # noqa: S603  Our program.

    return Supervisor(
        "receiver",
        number,
        start,
        hint="see the lines above; after code -9, check if the machine is short of memory",
        grace=10.0,  # The receivers' own limit is lower.
        tries=3,
        on_exit=on_exit,
        before_drain=listener.close,  # No new connection is accepted.
    )


def _administrate_all(settings: ReceiverSettings, admin: AdminListener, folder: str) -> None:
    redis = open_redis(settings.redis_url.get_secret_value())
    strict = settings.durability == "strict"
    asyncio.run(_administrate(settings, admin, redis, lambda: examine(redis, strict=strict), gathered(folder)))


async def _administrate(
    settings: ReceiverSettings, admin: AdminListener, redis: Redis, examine: Examine, registry: CollectorRegistry
) -> None:
    """Answer on the admin listener until cancelled."""
    exporter = ExporterLease(redis, Keys(settings.queue).exporter)
    target = TargetFigures(examine, part="receiver", certificate=settings.tls_certfile)
    app = create_admin(redis, examine, queue=settings.queue, registry=registry, exporter=exporter, others=[target])
    await admin.serve(app, beside=[exporter.keep])


async def _watch(inbox: Inbox, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Log each check of Redis that fails, whenever the result changes. Check more often while one fails."""
    waits, known, warned = Waits(_LOOKS), None, set[str]()
    while True:
        checks = await inbox.examine()
        failed = [check for check in checks if check.failed]
        for check in failed:
            if check not in (known or ()):
                log.error("redis_unsafe", check=check.name, hint=check.remedy)
        for check in checks:
            if check.warning and not check.passed and check.name not in warned:
                warned.add(check.name)
                log.warning("redis_warning", check=check.name, hint=check.remedy)
        if not failed and failed != known:
            log.info("redis_safe", checks=[check.name for check in checks if check.passed])
        known = failed
        if not failed:
            waits.reset()
        await sleep(waits.next() if failed else _LOOKS.longest)
