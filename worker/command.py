"""`credhook worker` and `credhook handlers`."""

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from uuid import uuid4

import click
import structlog
from redis import Redis
from redis.exceptions import RedisError
from rich.console import Console
from rich.table import Table

from receiver.events import EVENT_TYPES
from receiver.ledger import PREFIX
from receiver.ledger.admin import AdminListener, create_admin
from receiver.ledger.connection import open_redis, open_redis_sync
from receiver.ledger.health import examine
from worker.handlers import load
from worker.reconcile import Reconciler
from worker.rq_worker import EventWorker, Scheduler
from worker.settings import HandlerSettings, WorkerSettings

log = structlog.get_logger("credhook.worker")

#: Seconds between two tries to reach Redis at start: the first, and the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0


@click.command()
@click.option("--burst", is_flag=True, help="Stop when the queue is empty.")
def worker(*, burst: bool) -> None:
    """Fetch what each event refers to and run the handlers.

    Everything is set by environment variables; the table in README.md lists them. Run as many as you like, on as many
    machines as you like.
    """
    settings = WorkerSettings()
    registry = load(settings.handlers)
    name = f"{socket.gethostname()}.{os.getpid()}.{uuid4().hex[:8]}"
    redis = open_redis_sync(settings.redis_url.get_secret_value())
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    if settings.admin:
        _administrate(settings, settings.admin)
    try:
        _wait_for(redis, settings.queue)
        log.info("worker_started", name=name, queue=settings.queue, handlers=[one.name for one in registry.handlers])
        interval = settings.lease / 3
        reconciler = Reconciler(redis, queue=settings.queue, name=name, interval=interval, retention=settings.retention)
        _every(1.0, Scheduler(settings.queue, connection=redis).tick, "scheduler")
        _every(interval, reconciler.run, "reconciler")
        _work(settings.queue, redis, name, burst=burst)
    except _StopAsked:
        pass
    log.info("worker_stopped", name=name)


class _StopAsked(BaseException):
    """SIGTERM or Ctrl-C while RQ's worker does not listen for them itself."""


def _stop(*_: object) -> None:
    raise _StopAsked


def _work(queue: str, redis: Redis, name: str, *, burst: bool) -> None:
    """Work until asked to stop. RQ ends its loop when Redis times out, is read-only or full; the fleet should not."""
    while True:
        rq_worker = EventWorker(queue, name=f"{name}.{uuid4().hex[:4]}", connection=redis)
        try:
            rq_worker.work(burst=burst, logging_level=None)
        except RedisError as error:
            log.warning("worker_interrupted", error=type(error).__name__)
        if burst or rq_worker.stop_asked:
            return
        signal.signal(signal.SIGTERM, _stop)  # RQ's handlers were for a worker that is no more.
        signal.signal(signal.SIGINT, _stop)
        _wait_for(redis, queue)


@click.group()
def handlers() -> None:
    """Show which handlers are loaded, and for which types."""


@handlers.command("list")
def list_handlers() -> None:
    """Print each loaded handler with its event types."""
    registry = load(HandlerSettings().handlers)
    if not registry.handlers:
        click.echo("no handlers are loaded")
    table = Table("handler", "runs as", "event types")
    for one in registry.handlers:
        types = "all" if len(one.types) == len(EVENT_TYPES) else "\n".join(t for t in EVENT_TYPES if t in one.types)
        table.add_row(one.name, "coroutine" if one.is_async else "thread", types)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _wait_for(redis: Redis, queue: str) -> None:
    """Return once Redis takes writes; say so at every try until then."""
    wait = _FIRST_WAIT
    while True:
        try:
            redis.set(f"{PREFIX}{queue}:probe", "1", px=1_000)
        except RedisError as error:
            log.error("redis_unusable", error=type(error).__name__, retry_in=wait, hint="check REDIS_URL")  # noqa: TRY400  No traceback.
        else:
            return
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)


def _administrate(settings: WorkerSettings, address: str) -> None:
    """Answer on the admin listener, from a thread with a loop of its own: jobs may keep the main one busy."""
    try:
        listener = AdminListener(address)
    except (OSError, OverflowError) as error:
        raise click.ClickException(f"cannot listen on {address}: {error}; set CREDHOOK_ADMIN") from error

    async def serve() -> None:
        client = open_redis(settings.redis_url.get_secret_value())
        await listener.serve(create_admin(client, lambda: examine(client, strict=False), queue=settings.queue))

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True, name="admin").start()


def _every(seconds: float, chore: Callable[[], object], name: str) -> None:
    """Do the chore again and again beside the jobs, for as long as the process lives."""

    def repeat() -> None:
        while True:
            time.sleep(seconds)
            try:
                chore()
            except Exception as error:
                log.warning("chore_failed", chore=name, exc_info=error)

    threading.Thread(target=repeat, daemon=True, name=name).start()
