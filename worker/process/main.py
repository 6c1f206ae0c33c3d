"""One worker process from start to end. The supervisor in `credhook worker` starts, watches and replaces it."""

import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

import click
import structlog

from credhook import tracing
from credhook.backoff import Backoff, Waits
from credhook.logs import in_development, insist_on_logs
from credhook.metrics.counting import unread
from credhook.ops.outside import look_outside
from credhook.settings import WorkerSettings, in_force
from credhook.store import health
from credhook.store.errors import STORE_ERRORS, hint
from credhook.store.store import SyncStore
from credhook.supervisor import stop_on, stop_with_supervisor, stops
from credhook.worker.attempt.running import untimed
from credhook.worker.handlers.blocking import BLOCKED_SECONDS, SlowCode, refuse_blocking_calls
from credhook.worker.handlers.loading import load_for_work
from credhook.worker.process.concurrent import ConcurrentWorker, end_outage
from credhook.worker.process.heartbeat import Heartbeat, silence_seconds
from credhook.worker.process.supervisor import CANDIDATES, HAND_BACK, LOADED, STOPPED, Supervision
from credhook.worker.queue.claims import Candidates
from credhook.worker.queue.sweeper import Sweeper

log = structlog.get_logger("credhook.worker")

#: Waits between two tries to reach Redis at start.
_BACKOFF: Final = Backoff(first=0.5, longest=10.0)
#: Thresholds of the garbage collector. With Python's own (700, 10, 10), a tenth to a fifth of an event's time went to
#: collections.
_GC_THRESHOLDS: Final = 50_000, 20, 100
#: Rounds of the sweeper within the length of a lease.
_ROUNDS: Final = 3
#: Seconds between two looks whether the checks from outside are due.
_OUTSIDE_SECONDS: Final = 10.0
#: Exit code of a process whose handlers hang: the supervisor replaces it.
_REPLACE_ME: Final = 75
#: A blocked event loop ends the process after this part of the silence after which other processes miss it.
_BLOCKED_PART: Final = 2 / 3
#: The least seconds for that. A busy machine may stop a process for seconds.
_BLOCKED_SECONDS: Final = 4.0
#: Seconds of a blocked loop while plugins start or shut down. The process holds no events then.
_PLUGIN_SECONDS: Final = 30.0


def run(
    settings: WorkerSettings,
    name: str,
    supervision: Supervision | None,
    *,
    processes: int,
    burst: bool,
    isolated: bool = False,
    public_url: str | None = None,
) -> NoReturn:
    """Work until asked to stop, then end the process: with 0, or with another code to be replaced.

    `processes`: how many processes like this one there should be; `supervision`: None if this one is debugged;
    `isolated`: take one poison candidate after the other, and stop when none is left; `public_url`: to be checked.
    """
    try:
        stop_on(_stop)
        signal.signal(HAND_BACK, signal.SIG_IGN)  # No events are held yet.
        os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_forget_signals)
        candidates = Candidates.NONE if supervision else Candidates.ALL
        if isolated:
            settings, candidates = settings.model_copy(update={"concurrency": 1}), Candidates.ONLY
        code = _work(
            settings, name, supervision, processes=processes, burst=burst, candidates=candidates, public_url=public_url
        )
    except _StopAsked:
        code = 0
    except STORE_ERRORS as error:
        log.exception("redis_unusable", hint=hint(error))
        code = 1
    except click.ClickException:  # The handlers cannot be loaded.
        raise
    except BaseException as error:
        log.error("worker_failed", name=name, exc_info=error)  # noqa: TRY400  Our processor keeps the message out.
        code = 1
    if code == 0:
        _report(supervision, STOPPED)
    with suppress(OSError):  # The terminal may be closed.
        sys.stdout.flush()
        sys.stderr.flush()
    if os.getpgrp() == os.getpid():  # What handlers have started, if no supervisor is left to end it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
    os._exit(code)  # Hanging threads of handlers would keep the process alive.


class _StopAsked(BaseException):
    """A stop signal that arrived before the worker handles signals."""


def _stop(*_: object) -> None:
    raise _StopAsked


def _forget_signals() -> None:
    """Handle signals by default in a process that a handler has forked.

    The event loop's handlers write to a descriptor that the fork shares with it, so that a signal to the fork would
    stop the worker. A pool may end its processes at once, so signals are held until this is done.
    """
    signal.set_wakeup_fd(-1)
    for number in _held():
        signal.signal(number, signal.SIG_DFL)
    _release_signals()


def _held() -> tuple[signal.Signals, ...]:
    return (*stops(), HAND_BACK)


def _hold_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _held())


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _held())


def _report(supervision: Supervision | None, line: bytes) -> None:
    if supervision:
        with suppress(OSError):  # The supervisor is gone. The lifeline tells.
            os.write(supervision.report, line)


def _work(
    settings: WorkerSettings,
    name: str,
    supervision: Supervision | None,
    *,
    processes: int,
    burst: bool,
    candidates: Candidates,
    public_url: str | None,
) -> int:
    if not settings.admin:
        unread.set()
    store = settings.open_store_sync()
    tracing.start("worker")  # Before handlers are loaded: their own traces join ours.
    registry = load_for_work(settings.handlers, settings.handler_options)
    _report(supervision, LOADED)
    _wait_for(store)
    # Imported objects live as long as the process: the collector need not visit them.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    handlers = [handler.name for handler in registry.handlers]
    starting = [plugin.name for plugin in registry.plugins if plugin.startup_function]
    log.info(
        "worker_started",
        name=name,
        pid=os.getpid(),
        queue=settings.queue,
        handlers=handlers,
        **({"starting": starting} if starting else {}),
        **({"isolated": True} if candidates is Candidates.ONLY else {}),
        settings=in_force(settings),
    )
    wanted = {event_type: {handler.name for handler in registry.matching(event_type)} for event_type in registry.types}
    sweeper = Sweeper(store, name=name, interval=settings.lease / _ROUNDS, lease=settings.lease, wanted=wanted)
    with suppress(*STORE_ERRORS):  # The rounds do it as well.
        sweeper.unhandled.put_back()  # At once, what has waited for our handlers.
    _every(settings.lease / _ROUNDS, sweeper.run, "sweeper")

    def outside() -> None:
        if sweeper.leads:
            look_outside(store, settings, public_url)

    if not in_development():
        _every(_OUTSIDE_SECONDS, outside, "outside")
    concurrent = ConcurrentWorker(
        settings,
        registry,
        store,
        name=name,
        candidates=candidates,
        report_candidates=partial(_report, supervision, CANDIDATES),
        on_start=insist_on_logs,
    )
    heartbeat = Heartbeat(store, settings, registry, concurrent, processes=processes)
    heartbeat.beat()
    _every(heartbeat.interval, heartbeat.beat, "heartbeat")
    watch = _watchdog(settings, supervision)
    if supervision:
        sys.breakpointhook = _skip_breakpoint
        if in_development():
            refuse_blocking_calls()
            slow = SlowCode(concurrent.live_runs, turns=lambda: concurrent.announced.get("turns", {}))
            _every(BLOCKED_SECONDS / 2, slow.look, "slow code")
            arm = watch

            def watch(plugins_run: bool) -> None:
                slow.tick()
                arm(plugins_run)

        stop_with_supervisor(supervision.lifeline)
    else:
        sys.breakpointhook = _debug  # It blocks the loop, and so does the handler that a person steps through.
        untimed.set()  # A person in a debugger takes longer than a handler may.
    try:
        worked = concurrent.work(burst=burst, watch=watch)
    finally:
        heartbeat.leave()
    log.info("worker_stopped", name=name)
    tracing.flush()
    return 0 if worked else _REPLACE_ME


def blocked_seconds(lease: float) -> float:
    """Return the seconds after which a blocked event loop ends the process.

    Other processes must not miss this one before: a handler may stop its heartbeat as well, and they blame no event.
    """
    return max(_BLOCKED_SECONDS, _BLOCKED_PART * silence_seconds(lease))


def _watchdog(settings: WorkerSettings, supervision: Supervision | None) -> Callable[[bool], None]:
    """Return a function that has the process ended and its stacks reported, unless it is called again in time."""
    # In development leases are long, because a debugger stops their renewal. A blocked loop is still noticed soon.
    lease = min(settings.lease, WorkerSettings.model_fields["lease"].default) if in_development() else settings.lease
    seconds = blocked_seconds(lease)

    def arm(plugins_run: bool) -> None:
        if supervision:
            limit = _PLUGIN_SECONDS if plugins_run else seconds
            faulthandler.dump_traceback_later(limit, exit=True, file=supervision.report)

    return arm


def _debug(*_: object, **__: object) -> None:
    from pdb import Pdb

    Pdb(nosigint=True).set_trace(sys._getframe(1))  # noqa: SLF001  As pdb itself does. Ctrl-C stops the worker.


def _skip_breakpoint(*_: object, **__: object) -> None:
    log.warning("breakpoint_skipped", hint="Run credhook dev --debug in a terminal")


def _wait_for(store: SyncStore) -> None:
    """Return once a worker can use Redis; log each failed try."""
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
