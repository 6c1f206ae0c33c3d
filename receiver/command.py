"""`credhook receiver`: serve the application until told to stop, in one process or in several, and announce each."""

import asyncio
import functools
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final, Optional
from uuid import uuid4

import click
import structlog
from prometheus_client import REGISTRY, CollectorRegistry

from credhook import tracing
from credhook.background import beside
from credhook.listener.admin import Examine, bind_setting, create_admin, serve_admin, socket_from_systemd
from credhook.listener.server import Certificate, Listener, Server
from credhook.metrics.counting import drop_gauges, gathered, temporary_folder
from credhook.metrics.figures import TargetFigures
from credhook.receiver.app import RefusalLog, create_app
from credhook.receiver.inbox import Inbox
from credhook.settings import ReceiverSettings, in_force
from credhook.store.announcements import (
    ANNOUNCEMENT_SECONDS,
    ReceiverAnnouncement,
    Refusals,
    announced,
    fingerprint,
    refuses_alone,
    version,
)
from credhook.store.errors import STORE_ERRORS, StoreRefusal
from credhook.store.health import Check, SharedExamination, ask
from credhook.store.store import AsyncStore
from credhook.supervisor import FOLDER, PLACE, Supervisor, ignore_hangup, stop_on, stop_with_supervisor

if TYPE_CHECKING:
    from credhook.receiver.tracing import DeliveryTracer

log = structlog.get_logger("credhook.receiver")

#: Seconds between two checks of Redis while a check fails.
_UNSAFE_SECONDS: Final = 1.0
#: Seconds between two checks of Redis while no check fails.
_SAFE_SECONDS: Final = 5.0
#: Seconds that requests under way get after SIGTERM. Redis answers within five seconds or not at all.
GRACE_SECONDS: Final = 7
_ANNOUNCE_EVERY_SECONDS: Final = 10.0
_COMPARE: Final = (
    "this receiver refuses every delivery while its neighbours accept: compare its CREDHOOK_WEBHOOK_SECRETS, "
    "CREDHOOK_PATH_SECRET and clock with theirs, and restart it"
)
#: Seconds without a refusal after which a receiver that refused alone takes deliveries again.
_TRY_AGAIN_SECONDS: Final = 300.0
#: Seconds that the removal of the announcement may take.
_LEAVE_SECONDS: Final = 1.0


@click.command()
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that share the port."
)
@click.option("--fd", type=int, hidden=True, help="Accept from this socket, which the parent process has bound.")
@click.option("--lifeline", type=int, hidden=True, help="Stop when the supervisor's end of this pipe closes.")
def receiver(*, workers: int, fd: int | None, lifeline: int | None) -> None:
    """Accept deliveries: verify, deduplicate, store, acknowledge.

    Everything else is set by environment variables; the table in deploy/README.md lists them.
    """
    settings = ReceiverSettings()
    ignore_hangup()
    if fd is not None:
        _serve(settings, socket.socket(fileno=fd), lifeline=lifeline)
        return
    if settings.insecure and not settings.keys and settings.path_secret is None:
        log.warning("insecure", reason="CREDHOOK_INSECURE is set: deliveries are accepted without any check")
    listener = socket_from_systemd() or bind_setting(f"{settings.host}:{settings.port}", "HOST and PORT")
    admin = bind_setting(settings.admin, "CREDHOOK_ADMIN") if settings.admin else None
    host, port = listener.getsockname()[:2]
    log.info("receiver_started", host=host, port=port, workers=workers, settings=in_force(settings))
    code = 0
    if workers > 1:
        code = _supervise(settings, listener, workers, admin)
    else:
        _serve(settings, listener, admin)
    log.info("receiver_stopped", code=code)
    sys.exit(code)


def _serve(
    settings: ReceiverSettings,
    listener: socket.socket,
    admin: socket.socket | None = None,
    lifeline: int | None = None,
) -> None:
    store = settings.open_store()
    inbox = Inbox(store, durability=settings.durability)
    refusals = RefusalLog()
    certificate = Certificate(settings.tls_certfile, settings.tls_keyfile) if settings.tls_certfile else None
    announcer = Announcer(store, settings, inbox, refusals)
    config = Listener(
        create_app(settings, inbox, refusals, tracer=_tracer(settings, inbox), examine=announcer.examine),
        "public",
        body_bytes=settings.max_body,
        idle_seconds=settings.idle_seconds,
        count=refusals.turn_away,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_context_factory=certificate and certificate.context,
    )
    server = Server(config)
    stop_on(server.handle_exit)
    if lifeline is not None:
        stop_with_supervisor(lifeline)

    async def serve() -> None:
        # Start without waiting for Redis: until it answers, deliveries get 503.
        works: list[Callable[[], Awaitable[None]]] = [lambda: _watch(inbox), announcer.keep]
        if admin:
            works.append(lambda: _run_admin(settings, admin, store, announcer.examine, REGISTRY))
        async with beside(*works):
            await server.serve([listener])
        await announcer.leave()
        await inbox.aclose()

    # Each full collection of all imported objects would stop the process for 16 to 38 ms (measured).
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve())
    tracing.flush()


def _tracer(settings: ReceiverSettings, inbox: Inbox) -> Optional["DeliveryTracer"]:
    tracing.start("receiver")
    if (tracer := tracing.tracer()) is None:
        return None
    from credhook.receiver.tracing import DeliveryTracer

    return DeliveryTracer(tracer, inbox, settings)


def _supervise(settings: ReceiverSettings, listener: socket.socket, workers: int, admin: socket.socket | None) -> int:
    """Serve in several processes. They share a socket that outlives them, so that no waiting connection is lost."""
    environment = dict(os.environ)

    def start(place: int, lifeline: int) -> Popen[bytes]:
        fd = listener.fileno()
        command = [sys.executable, "-P", "-m", "credhook.receiver", "--fd", str(fd), "--lifeline", str(lifeline)]
        return Popen(command, pass_fds=(fd, lifeline), env={**environment, PLACE: str(place)})  # noqa: S603  Our program.

    # The receivers' own limit is lower than this grace. Once the socket is closed here, no new connection is accepted.
    prepare = functools.partial(
        Supervisor[Popen[bytes]], "receiver", workers, start, grace=10.0, before_drain=listener.close
    )
    if not admin:
        return prepare().run()
    with temporary_folder() as folder:  # The parent's admin listener sums the counters of its children.
        environment[FOLDER] = folder
        store = settings.open_store()
        examining = SharedExamination(functools.partial(ask, store), durability=settings.durability)
        serving = _run_admin(settings, admin, store, examining, gathered(folder))
        threading.Thread(target=asyncio.run, args=(serving,), daemon=True).start()
        return prepare(on_exit=functools.partial(drop_gauges, folder)).run()


async def _run_admin(
    settings: ReceiverSettings, admin: socket.socket, store: AsyncStore, examine: Examine, registry: CollectorRegistry
) -> None:
    target = TargetFigures(examine, part="receiver", certificate=settings.tls_certfile)
    app = create_admin(store, examine, registry=registry, others=[target])
    await serve_admin(admin, app)


async def _watch(inbox: Inbox, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Log the checks of Redis that do not pass, whenever they change. End an outage if no check fails."""
    reported: list[Check] = []
    was_safe = False
    while True:
        checks = await inbox.examine()
        problems = [check for check in checks if not check.passed]
        is_safe = not any(check.failed for check in problems)
        for check in problems:
            if check not in reported:
                event = log.error if check.failed else log.warning
                event("redis_unsafe" if check.failed else "redis_warning", check=check.name, hint=check.remedy)
        if is_safe:
            if not was_safe:
                log.info("redis_safe", checks=[check.name for check in checks if check.passed])
            if not inbox.denied:
                inbox.end_outage()
        reported, was_safe = problems, is_safe
        await sleep(_SAFE_SECONDS if is_safe else _UNSAFE_SECONDS)


class Announcer:
    """Announces this process in Redis every ten seconds.

    Receivers and workers do not know each other. Status and doctor compare the announcements. They find a receiver that
    writes to a queue without workers, and receivers whose settings differ.
    """

    def __init__(self, store: AsyncStore, settings: ReceiverSettings, inbox: Inbox, refusals: RefusalLog) -> None:
        self._store = store
        self._inbox = inbox
        self._refusals = refusals
        self._token = uuid4().hex[:12]
        self._identity = ReceiverAnnouncement(
            queue=settings.queue,
            version=version(),
            host=socket.gethostname(),
            pid=os.getpid(),
            durability=settings.durability,
            # No secrets, even as a digest. A receiver with a wrong secret is noticed by its refusals.
            config_fingerprint=fingerprint(
                {
                    "CREDHOOK_WEBHOOK_PATH": settings.webhook_path,
                    "CREDHOOK_TOLERANCE": settings.tolerance,
                    "CREDHOOK_RETENTION": settings.retention,
                    "CREDHOOK_DURABILITY": settings.durability,
                }
            ),
        )
        self._counted, self._at = 0, time.monotonic()
        #: True while this receiver alone refuses every delivery.
        self.refuses_alone = False
        #: When it last accepted: refusals of this process, and what each neighbour had accepted.
        self._refused_before, self._accepted_before = 0, dict[str, int]()

    async def examine(self) -> Sequence[Check]:
        """Return the inbox's checks, and whether this receiver should take deliveries beside its neighbours."""
        return [*await self._inbox.examine(), Check("deliveries", not self.refuses_alone, _COMPARE)]

    async def keep(self) -> None:
        """Announce until cancelled, or until Redis fails."""
        while True:
            await self.announce()
            await asyncio.sleep(_ANNOUNCE_EVERY_SECONDS)

    async def announce(self) -> None:
        """Write the figures of the time since the last announcement."""
        now, inbox = time.monotonic(), self._inbox
        with suppress(ValueError):  # Another version or program has written to the announcements.
            await self._compare(has_accepted=inbox.acknowledged > self._counted, now=now)
        figures = {
            "acknowledged": inbox.acknowledged - self._counted,
            "seconds": round(now - self._at, 3),
            "idle": round(now - inbox.last_acknowledged, 3) if inbox.acknowledged else None,
            "accepted": inbox.acknowledged,
            "refusals": {
                rule: Refusals(count=spell.number, since=round(now - spell.first, 3), ago=round(now - spell.last, 3))
                for rule, spell in self._refusals.spells.items()
            },
            "refuses_alone": self.refuses_alone,
            "turned_away": dict(self._refusals.turned_away),
            "turned_away_ago": round(now - self._refusals.last_turned_away, 3) if self._refusals.turned_away else None,
            "unavailable": inbox.unavailable,
            "conflicts": inbox.conflicts,
            "conflicted": round(now - inbox.last_conflict, 3) if inbox.conflicts else None,
        }
        self._counted, self._at = inbox.acknowledged, now
        mine = self._identity.model_copy(update=figures).model_dump_json()
        keys, arguments = self._store.keys, [self._token, mine, int(ANNOUNCEMENT_SECONDS * 1_000)]
        with suppress(StoreRefusal):  # A full Redis refuses this command, and takes the announcement.
            await self._store.redis.sadd("rq:queues", keys.jobs)  # `credhook status` finds the queue there.
        await self._store.run("announce", arguments, keys=[keys.receivers])

    async def _compare(self, *, has_accepted: bool, now: float) -> None:
        """Compare what this receiver and its neighbours have done since it last accepted a delivery."""
        values: Any = await self._store.redis.hgetall(self._store.keys.receivers)
        others = [other for other in announced(values) if other.name != self._token]
        accepted = {other.name: ReceiverAnnouncement.model_validate_json(other.text).accepted for other in others}
        refused, spells = self._refusals.refused, self._refusals.spells.values()
        # Without traffic nothing can tell whether the setting is right by now, so it is tried again.
        is_quiet = now - max((spell.last for spell in spells), default=0.0) > _TRY_AGAIN_SECONDS
        if has_accepted or is_quiet:
            self._refused_before, self._accepted_before = refused, accepted
        since = [count - self._accepted_before.setdefault(name, count) for name, count in accepted.items()]
        alone = refuses_alone(refused - self._refused_before, since)
        if alone != self.refuses_alone:
            log.error("receiver_refuses_alone", hint=_COMPARE) if alone else log.info("receiver_ready")
        self.refuses_alone = alone

    async def leave(self) -> None:
        """Remove the announcement."""
        with suppress(*STORE_ERRORS):  # The announcement expires within a minute.
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._store.redis.hdel(self._store.keys.receivers, self._token)
