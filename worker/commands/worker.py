"""`credhook worker`: keep worker processes going. What one of them does is in main.py."""

import functools
import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from credhook.certificate import remark_on_expiry
from credhook.metrics.places import FOLDER
from credhook.worker.process.supervisor import Pipes, WorkerSupervisor
from credhook.worker.settings import WorkerSettings


@click.command()
@click.option(
    "--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes to keep going."
)
@click.option(
    "--isolation",
    type=click.Choice(["loop", "fork"]),
    default="loop",
    show_default=True,
    help="fork: one event at a time, each in a process of its own, for handlers that are not trusted to behave.",
)
@click.option("--burst", is_flag=True, help="Stop when the queue is empty.")
@click.option("--supervised", hidden=True, help="Pipes of the supervisor that has started this process.")
@click.option("--died", multiple=True, hidden=True, help="Token of a worker before this one, and whose fault it was.")
def worker(*, processes: int, isolation: str, burst: bool, supervised: str | None, died: tuple[str, ...]) -> None:
    """Fetch what each event refers to and run the handlers.

    Everything else is set by environment variables; the table in deploy/README.md lists them. Run as many as you like,
    on as many machines as you like. SIGTERM takes nothing more, finishes what is under way, hands back what
    CREDHOOK_GRACE does not suffice for, and ends with 0.
    """
    settings = WorkerSettings()
    if supervised is None:
        remark_on_expiry(settings.client_certfile, name="CREDHOOK_CLIENT_CERTFILE", now=datetime.now(UTC))
        sys.exit(_supervise(settings, processes, isolation, burst=burst))
    # Before the rest is imported, which takes half a second: what the dead have held can go on elsewhere.
    unnoted = _reclaim(settings, died) if died else []
    # Imported by the workers alone: their supervisor stays small.
    main = importlib.import_module("credhook.worker.process.main")
    main.run(settings, Pipes.parse(supervised), isolation, burst=burst, died=unnoted)


def _reclaim(settings: WorkerSettings, died: Sequence[str]) -> Sequence[str]:
    """Have noted what the supervisor tells of; what Redis cannot be told yet."""
    reclaim = importlib.import_module("credhook.worker.queue.reclaim")
    connection = importlib.import_module("credhook.store.connection")
    with connection.open_redis_sync(settings.redis_url.get_secret_value()) as redis:
        unnoted: Sequence[str] = reclaim.reclaim_all(redis, died, queue=settings.queue, retention=settings.retention)
    return unnoted


def _supervise(settings: WorkerSettings, processes: int, isolation: str, *, burst: bool) -> int:
    """Keep the processes going; the exit code."""
    options = ["--isolation", isolation, *(["--burst"] if burst else [])]
    prepare = functools.partial(WorkerSupervisor, processes, options, lease=settings.lease, grace=settings.grace)
    if not settings.admin:
        return prepare(os.environ).run()
    # Most supervisors have no listener, and stay small without what it takes.
    admin = importlib.import_module("credhook.worker.process.admin")
    gathering = importlib.import_module("credhook.metrics.gathering")
    with tempfile.TemporaryDirectory(prefix="credhook-") as folder:
        admin.start_admin(settings, settings.admin, folder)
        environment = {**os.environ, FOLDER: folder}
        return prepare(environment, buried=lambda place: gathering.forget(place, folder)).run()
