"""The competitors: who takes part, how each is filled and started, and where its unfinished work can be seen."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench import environments
from bench.environments import PROGRAMS


@dataclass(frozen=True, slots=True)
class Competitor:
    """One way to work on events.

    Attributes:
        name: for options and for the results' file.
        title: for people.
        slots: how many events it may have under way.
        module: of bench.programs; run as a program, it fills the queue. The limit has none, and is the program.
        arguments: what the interpreter is given to start the worker.
        unfinished: Redis keys that are there as long as anything is left to do, or has failed.
        appendfsync: how its Redis is configured. Celery waits for Redis at each step: `always`, which we ship, would
            make it four times as slow, and is not what it is run on.
        settings: environment variables of its own.
    """

    name: str
    title: str
    slots: int
    module: str
    arguments: tuple[str, ...]
    unfinished: tuple[str, ...]
    interpreter: Callable[[], str | Path] = lambda: sys.executable
    appendfsync: str = "everysec"
    settings: dict[str, str] = field(default_factory=dict)

    def works(self, *options: str) -> tuple[str | Path, ...]:
        """The command that starts the worker.

        Raises:
            Missing: its environment could not be made.
        """
        return (self.interpreter(), *self.arguments, *options)

    def fills(self) -> tuple[str | Path, ...] | None:
        """The command that fills the queue, if there is one.

        Raises:
            Missing: its environment could not be made.
        """
        return (self.interpreter(), "-m", f"bench.programs.{self.module}") if self.unfinished else None


def _rq(name: str, worker: str) -> Competitor:
    return Competitor(
        name,
        f"RQ, {worker}",
        1,
        "rq_jobs",
        ("-m", "rq.cli", "worker", "--quiet", "--worker-class", f"rq.worker.{worker}"),
        ("rq:queue:default", "rq:intermediate:default", "rq:wip:default", "rq:failed:default"),
    )


def _celery(name: str, title: str, pool: str, slots: int) -> Competitor:
    arguments = ("-m", "celery", "-A", "bench.programs.celery_tasks", "worker", "--loglevel", "WARNING")
    return Competitor(
        name,
        title,
        slots,
        "celery_tasks",
        (*arguments, "--pool", pool, "--concurrency", str(slots)),
        ("celery", "unacked"),
        _in("celery_tasks"),
    )


def _in(module: str) -> Callable[[], Path]:
    """The interpreter of a competitor's own environment."""
    return lambda: environments.python(PROGRAMS / f"{module}.txt")


#: RQ, which our worker runs on, and httpx are among our requirements, in the versions we run on.
OURS: Final = Competitor(
    "credhook",
    "credhook",
    100,
    "credhook_events",
    ("-m", "credhook.worker"),
    ("rq:queue:credhook", "rq:failed:credhook", "credhook:credhook:open", "credhook:credhook:dead"),
    appendfsync="always",
    settings={"CREDHOOK_HANDLERS": "bench.programs.credhook_events:nothing"},
)
RQ_WORKER: Final = _rq("rq-worker", "Worker")
RQ_SIMPLE: Final = _rq("rq-simple", "SimpleWorker")
CELERY_THREADS: Final = _celery("celery-threads", "Celery, 64 threads", "threads", 64)
CELERY_GEVENT: Final = _celery("celery-gevent", "Celery, 100 of gevent", "gevent", 100)
DRAMATIQ: Final = Competitor(
    "dramatiq",
    "dramatiq, 64 threads",
    64,
    "dramatiq_actors",
    ("-m", "dramatiq", "bench.programs.dramatiq_actors", "--processes", "1", "--threads", "64"),
    ("dramatiq:default", "dramatiq:default.msgs", "dramatiq:default.XQ"),
    _in("dramatiq_actors"),
)
ARQ: Final = Competitor(
    "arq",
    "arq, 100 jobs",
    100,
    "arq_jobs",
    ("-m", "arq", "bench.programs.arq_jobs.Worker", "--custom-log-dict", "bench.programs.arq_jobs.QUIET"),
    ("arq:queue",),
    _in("arq_jobs"),
)
LIMIT: Final = Competitor(
    "bare-httpx", "bare httpx (the limit)", 100, "bare_httpx", ("-m", "bench.programs.bare_httpx"), ()
)

PEERS: Final = (RQ_WORKER, RQ_SIMPLE, CELERY_THREADS, CELERY_GEVENT, DRAMATIQ, ARQ)
COMPETITORS: Final = {each.name: each for each in (OURS, *PEERS, LIMIT)}
