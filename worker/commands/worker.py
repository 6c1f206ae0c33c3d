"""`credhook worker`: keep worker processes running. Each process runs worker/process/main.py."""

import functools
import os
import sys

import click

from credhook.settings import WorkerSettings, public_url
from credhook.store import Death
from credhook.supervisor import FOLDER
from credhook.worker.process.supervisor import Supervision, WorkerSupervisor, process_names

#: The supervisor's own place in the metrics, beside the places of its workers.
_SUPERVISOR_PLACE = "supervisor"


@click.command()
@click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes to run.")
@click.option("--burst", is_flag=True, help="Stop when the queue is empty.")
@click.option("--debug", is_flag=True, hidden=True, help="Work in this process, for `credhook dev --debug`.")
@click.option("--isolated", is_flag=True, hidden=True, help="Take poison candidates alone, until none is left.")
@click.option(
    "--supervised", type=(int, int, str), hidden=True, help="Two pipes of the supervisor, and this worker's name."
)
def worker(
    *, processes: int, burst: bool, debug: bool, isolated: bool, supervised: tuple[int, int, str] | None
) -> None:
    """Fetch the details of each event and run the handlers.

    Environment variables set everything else; deploy/README.md lists them. CREDHOOK_HANDLER_OPTIONS replaces options of
    single handlers, such as their timeout or rate, and `credhook handlers list` shows the options in force.

    Run as many workers as you like, on as many machines as you like. After SIGTERM, a worker takes no more events and
    finishes those in flight. It hands back the events that take longer than CREDHOOK_GRACE, and exits with 0.
    """
    settings, endpoint = WorkerSettings(), public_url()
    if supervised is None and not debug:
        sys.exit(_supervise(settings, processes, burst=burst))
    # Only workers import this, so that their supervisor stays small.
    from credhook.worker.process import main

    supervision = Supervision(*supervised) if supervised else None
    name = supervision.name if supervision else next(process_names())
    main.run(settings, name, supervision, processes=processes, burst=burst, isolated=isolated, public_url=endpoint)


def _supervise(settings: WorkerSettings, processes: int, *, burst: bool) -> int:
    options = ["--processes", str(processes), *(["--burst"] if burst else [])]
    prepare = functools.partial(
        WorkerSupervisor, processes, options, grace=settings.grace, reclaim=functools.partial(_reclaim, settings)
    )
    if not settings.admin:
        return prepare(os.environ).run()
    # Most supervisors have no listener, and stay small without these modules.
    from credhook.metrics.counting import count_in, drop_gauges, temporary_folder

    with temporary_folder() as folder:
        count_in(folder, _SUPERVISOR_PLACE)  # The supervisor counts the events that it puts back.
        from credhook.worker.process.admin import start_admin

        supervisor = prepare({**os.environ, FOLDER: folder}, on_exit=functools.partial(drop_gauges, folder))
        start_admin(settings, settings.admin, folder, supervisor.is_alive, supervisor.names)
        return supervisor.run()


def _reclaim(settings: WorkerSettings, name: str, death: Death) -> bool:
    """Put back the events of a dead worker. Most supervisors never see a death, and stay small without this module."""
    from credhook.worker.queue.leases import reclaim

    store = settings.open_store_sync()
    with store.redis:
        return reclaim(store, name, death)
