"""`credhook worker`: keep worker processes running. What one process does is in worker/process/main.py."""

import functools
import os
import sys
from collections.abc import Sequence

import click

from credhook.logs import in_development
from credhook.settings import WorkerSettings
from credhook.supervisor import FOLDER
from credhook.worker.process.supervisor import Pipes, WorkerSupervisor


@click.command()
@click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes to run.")
@click.option(
    "--isolation",
    type=click.Choice(["loop", "fork"]),
    default="loop",
    show_default=True,
    help="fork: one event at a time, each in a process of its own, for handlers that may crash or block.",
)
@click.option("--burst", is_flag=True, help="Stop when the queue is empty.")
@click.option("--supervised", type=(int, int, str), hidden=True, help="Pipes of the supervisor, and our token.")
@click.option("--died", multiple=True, hidden=True, help="Token of a dead worker, and how it died.")
def worker(
    *, processes: int, isolation: str, burst: bool, supervised: tuple[int, int, str] | None, died: tuple[str, ...]
) -> None:
    """Fetch the details of each event and run the handlers.

    Environment variables set everything else; deploy/README.md lists them. Run as many workers as you like, on as many
    machines as you like. After SIGTERM, a worker takes no more events and finishes those in flight. It hands back the
    events that take longer than CREDHOOK_GRACE, and exits with 0.
    """
    settings = WorkerSettings()
    if supervised is None:
        sys.exit(_supervise(settings, processes, isolation, burst=burst))
    # The rest takes half a second to import. Before that, other workers get the events of the dead ones.
    unnoted: Sequence[str] = []
    if died:
        from credhook.worker.queue.leases import reclaim_all

        store = settings.open_store_sync()
        with store.redis:
            unnoted = reclaim_all(store, died)
    # Only workers import this, so that their supervisor stays small.
    from credhook.worker.process import main

    main.run(settings, Pipes(*supervised), isolation, burst=burst, died=unnoted)


def _supervise(settings: WorkerSettings, processes: int, isolation: str, *, burst: bool) -> int:
    options = ["--isolation", isolation, *(["--burst"] if burst else [])]
    # In development leases are long, because a breakpoint stops their renewal. A blocked loop is still noticed soon.
    lease = min(settings.lease, WorkerSettings.model_fields["lease"].default) if in_development() else settings.lease
    prepare = functools.partial(WorkerSupervisor, processes, options, lease=lease, grace=settings.grace)
    if not settings.admin:
        return prepare(os.environ).run()
    # Most supervisors have no listener, and stay small without these modules.
    from credhook.metrics.counting import forget, temporary_folder
    from credhook.worker.process.admin import start_admin

    with temporary_folder() as folder:
        supervisor = prepare({**os.environ, FOLDER: folder}, on_exit=functools.partial(forget, folder))
        start_admin(settings, settings.admin, folder, supervisor.is_alive, supervisor.tokens)
        return supervisor.run()
