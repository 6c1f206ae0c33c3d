"""One worker process from start to end. The supervisor in `credhook worker` starts, watches and replaces it."""

import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NoReturn
from uuid import uuid4

import structlog

from credhook import tracing
from credhook.backoff import Backoff, Waits
from credhook.logs import in_development
from credhook.settings import WorkerSettings, in_force
from credhook.store import health
from credhook.store.errors import STORE_ERRORS, hint
from credhook.store.store import SyncStore
from credhook.supervisor import stop_on
from credhook.worker.handlers.blocking import refuse_blocking_calls
from credhook.worker.handlers.loading import load
from credhook.worker.process import breakpoints, jobs
from credhook.worker.process.concurrent import ConcurrentWorker, end_outage
from credhook.worker.process.heartbeat import Heartbeat
from credhook.worker.process.supervisor import HAND_BACK, PULSE, Pipes
from credhook.worker.queue.leases import reclaim_all
from credhook.worker.queue.sweeper import Sweeper

log = structlog.get_logger("credhook.worker")

#: Waits between two tries to reach Redis at start.
_BACKOFF: Final = Backoff(first=0.5, longest=10.0)
#: Thresholds of the garbage collector. With Python's own (700, 10, 10), a tenth to a fifth of an event's time went to
#: collections.
_GC_THRESHOLDS: Final = 50_000, 20, 100
#: Rounds of the sweeper within the length of a lease.
_ROUNDS: Final = 3
#: Exit code of a process whose handlers hang: the supervisor replaces it.
_REPLACE_ME: Final = 75


def run(settings: WorkerSettings, pipes: Pipes, isolation: str, *, burst: bool, died: Sequence[str] = ()) -> NoReturn:
    """Work until asked to stop, then end the process: with 0, or with another code to be replaced.

    `died`: earlier workers whose deaths Redis has not noted yet, as `reclaim_all` takes them.
    """
    stop_on(_stop)
    signal.signal(HAND_BACK, signal.SIG_IGN)  # No events are held yet.
    try:
        code = _work(settings, pipes, isolation, burst=burst, died=died)
    except _StopAsked:
        code = 0
    except STORE_ERRORS as error:
        log.exception("redis_unusable", hint=hint(error))
        code = 1
    with suppress(OSError):  # The terminal may be closed.
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # Hanging threads of handlers would keep the process alive.


class _StopAsked(BaseException):
    """A stop signal that arrived before the worker handles signals."""


def _stop(*_: object) -> None:
    raise _StopAsked


def _work(settings: WorkerSettings, pipes: Pipes, isolation: str, *, burst: bool, died: Sequence[str]) -> int:
    os.set_blocking(pipes.report, False)
    faulthandler.register(signal.SIGUSR1, file=pipes.report, all_threads=False)
    name = f"{socket.gethostname()}.{os.getpid()}.{uuid4().hex[:8]}"
    store = settings.open_store_sync()
    tracing.start("worker")  # Before handlers are loaded: their own traces join ours.
    registry = load(settings.handlers)
    _wait_for(store)
    reclaim_all(store, died)
    # Imported objects live as long as the process: the collector need not visit them.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    handlers = [one.name for one in registry.handlers]
    starting = {"starting": names} if (names := [one.name for one in registry.plugins if one.startup_function]) else {}
    log.info(
        "worker_started", name=name, queue=settings.queue, handlers=handlers, **starting, settings=in_force(settings)
    )
    wanted = {event_type: {one.name for one in registry.matching(event_type)} for event_type in registry.types}
    sweeper = Sweeper(store, name=name, interval=settings.lease / _ROUNDS, wanted=wanted)
    with suppress(*STORE_ERRORS):  # The rounds do it as well.
        sweeper.unhandled.put_back()  # At once, what has waited for our handlers.
    _every(settings.lease / _ROUNDS, sweeper.run, "sweeper")
    if in_development():
        refuse_blocking_calls()
        breakpoints.install(lambda: _pulse(pipes.report))
    concurrent = None
    if isolation == "loop":
        concurrent = ConcurrentWorker(settings, registry, store, name=name, token=pipes.token)
    heartbeat = Heartbeat(store, settings, registry, pipes.token, worker=concurrent)
    heartbeat.beat()
    _every(heartbeat.interval, heartbeat.beat, "heartbeat")
    _end_with(pipes.lifeline)
    code = 0
    try:
        if concurrent:
            if not concurrent.work(burst=burst, pulse=lambda: _pulse(pipes.report)):
                code = _REPLACE_ME
        else:
            jobs.shared()  # Forks inherit the settings and the handlers.
            _work_isolated(settings, name, heartbeat, burst=burst)
    finally:
        heartbeat.leave()
    log.info("worker_stopped", name=name)
    tracing.flush()
    return code


def _work_isolated(settings: WorkerSettings, name: str, heartbeat: Heartbeat, *, burst: bool) -> None:
    """Run RQ's forking worker, and run it again when an error of Redis has ended it."""
    store = settings.open_store_sync()  # RQ raises the time-out of its client to minutes.
    # Only the supervisor handles SIGHUP: its SIGTERM would otherwise be the second signal, which kills the current job.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def announce(error: str) -> None:
        heartbeat.credential_error, heartbeat.started = error, True

    while True:
        rq_worker = jobs.IsolatingWorker(store, name=f"{name}.{uuid4().hex[:4]}", announce=announce)
        try:
            rq_worker.work(burst=burst, logging_level=None)
        except STORE_ERRORS as error:
            log.warning("worker_interrupted", error=type(error).__name__)
        if burst or rq_worker.stop_asked:
            return
        signal.signal(signal.SIGTERM, _stop)  # RQ's signal handlers belong to the worker that has ended.
        signal.signal(signal.SIGINT, _stop)
        signal.signal(HAND_BACK, signal.SIG_IGN)
        time.sleep(_BACKOFF.first)  # The error may come back at once, as a refused permission does.
        _wait_for(store)


def _pulse(descriptor: int) -> None:
    with suppress(OSError):  # The supervisor is gone, or has not read for long. The lifeline tells.
        os.write(descriptor, PULSE)


def _end_with(lifeline: int) -> None:
    """Stop in order when the supervisor has died in any way."""

    def wait() -> None:
        os.read(lifeline, 1)
        log.warning("supervisor_gone")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="lifeline").start()


def _wait_for(store: SyncStore) -> None:
    """Return once Redis is one that a worker can use; log each failed try."""
    waits = Waits(_BACKOFF)
    while True:
        try:
            error, advice = "", health.unusable(health.ask_sync(store))
        except STORE_ERRORS as failed:
            error, advice = type(failed).__name__, hint(failed)
        if not advice:
            end_outage(waits)
            return
        wait = waits.next()
        log.error("redis_unusable", error=error, retry_in=wait, hint=advice)
        time.sleep(wait)


def _every(seconds: float, work: Callable[[], object], name: str) -> None:
    """Call `work` regularly from a thread, until the process ends."""

    def repeat() -> None:
        while True:
            time.sleep(seconds)
            try:
                work()
            except Exception as error:
                advice = {"hint": hint(error)} if isinstance(error, STORE_ERRORS) else {}
                log.warning("background_task_failed", task=name, exc_info=error, **advice)

    threading.Thread(target=repeat, daemon=True, name=name).start()
