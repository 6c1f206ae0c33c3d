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
from receiver.ledger.admin import admin_server, create_admin
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # Until RQ has its own: waiting for Redis can be long.
    _wait_for(redis)
    log.info("worker_started", name=name, queue=settings.queue, handlers=[one.name for one in registry.handlers])
    if settings.admin:
        threading.Thread(target=_administrate, args=(settings, settings.admin), daemon=True, name="admin").start()
    interval = settings.lease / 3
    _every(1.0, Scheduler(settings.queue, connection=redis).tick, "scheduler")
    _every(interval, Reconciler(redis, queue=settings.queue, name=name, interval=interval).run, "reconciler")
    while True:
        rq_worker = EventWorker(settings.queue, name=f"{name}.{uuid4().hex[:4]}", connection=redis)
        rq_worker.work(burst=burst, logging_level=None)
        if burst or rq_worker.stop_asked:
            break
        # RQ ends its loop when Redis times out, is read-only or full. The fleet should outlive that.
        log.warning("worker_interrupted", hint="Redis timed out, is read-only or full; starting over")
        _wait_for(redis)
    log.info("worker_stopped", name=name)


@click.group()
def handlers() -> None:
    """Show which handlers are loaded, and for which types."""


@handlers.command("list")
def list_handlers() -> None:
    """Print each loaded handler with its event types."""
    registry = load(HandlerSettings().handlers)
    table = Table("handler", "runs as", "event types")
    for one in registry.handlers:
        types = "all" if len(one.types) == len(EVENT_TYPES) else "\n".join(t for t in EVENT_TYPES if t in one.types)
        table.add_row(one.name, "coroutine" if one.is_async else "thread", types)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _wait_for(redis: Redis) -> None:
    """Return once Redis answers; say so at every try until then."""
    wait = _FIRST_WAIT
    while True:
        try:
            redis.ping()
        except RedisError as error:
            log.error("redis_unreachable", error=type(error).__name__, retry_in=wait, hint="check REDIS_URL")  # noqa: TRY400  No traceback.
        else:
            return
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)


def _administrate(settings: WorkerSettings, address: str) -> None:
    """Answer on the admin listener, from a thread with a loop of its own: jobs may keep the main one busy."""

    async def serve() -> None:
        client = open_redis(settings.redis_url.get_secret_value())
        app = create_admin(client, lambda: examine(client, strict=False), queue=settings.queue)
        await admin_server(app, address).serve()

    asyncio.run(serve())


def _every(seconds: float, chore: Callable[[], object], name: str) -> None:
    """Do the chore again and again beside the jobs, for as long as the process lives."""

    def repeat() -> None:
        while True:
            time.sleep(seconds)
            try:
                chore()
            except RedisError as error:
                log.warning("chore_skipped", chore=name, error=type(error).__name__)

    threading.Thread(target=repeat, daemon=True, name=name).start()
