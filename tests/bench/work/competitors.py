"""The competitors: who takes part, how each is filled and started, and where its unfinished work can be seen."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bench import environments
from bench.environments import PROGRAMS

#: Events under way at once, for those who can.
_CROWD: Final = 400


@dataclass(frozen=True, slots=True)
class Competitor:
    """One way to work on events.

    Attributes:
        name: for options and for the results' file.
        title: for people.
        slots: how many events it may have under way.
        filler: what the interpreter is given to fill the queue; nothing for the limits, which have none.
        arguments: what it is given to start the worker.
        unfinished: Redis keys that are there as long as anything is left to do, or has failed.
        interpreter: begins both commands; makes the environment that they need.
        appendfsync: how its Redis is configured.
        settings: environment variables of its own.
    """

    name: str
    title: str
    slots: int
    filler: tuple[str, ...]
    arguments: tuple[str, ...]
    unfinished: tuple[str, ...]
    interpreter: Callable[[], tuple[str | Path, ...]] = lambda: (sys.executable,)
    appendfsync: str = "everysec"
    settings: dict[str, str] = field(default_factory=dict)

    def works(self, *options: str) -> tuple[str | Path, ...]:
        """The command that starts the worker.

        Raises:
            Missing: its environment could not be made.
        """
        return (*self.interpreter(), *self.arguments, *options)

    def fills(self) -> tuple[str | Path, ...] | None:
        """The command that fills the queue, if there is one.

        Raises:
            Missing: its environment could not be made.
        """
        return (*self.interpreter(), *self.filler) if self.filler else None


def _program(module: str) -> tuple[str, ...]:
    """What runs one of bench.programs."""
    return ("-m", f"bench.programs.{module}")


def _rq(name: str, worker: str) -> Competitor:
    return Competitor(
        name,
        f"RQ, {worker}",
        1,
        _program("rq_jobs"),
        ("-m", "rq.cli", "worker", "--quiet", "--worker-class", f"rq.worker.{worker}"),
        ("rq:queue:default", "rq:intermediate:default", "rq:wip:default", "rq:failed:default"),
    )


def _in(module: str) -> Callable[[], tuple[Path]]:
    """The interpreter of a competitor's own environment."""
    return lambda: (environments.python(PROGRAMS / f"{module}.txt"),)


def _crowded(competitor: Competitor) -> Competitor:
    """The same with more at once."""
    title = competitor.title.partition(",")[0]
    return replace(competitor, name=f"{competitor.name}-{_CROWD}", title=f"{title}, {_CROWD} at once", slots=_CROWD)


#: RQ, which our worker runs on, and httpx are among our requirements, in the versions we run on.
OURS: Final = Competitor(
    "credhook",
    "credhook",
    100,
    _program("credhook_events"),
    ("-m", "credhook.worker"),
    ("rq:queue:credhook", "rq:failed:credhook", "credhook:credhook:open", "credhook:credhook:dead"),
    appendfsync="always",
    settings={"CREDHOOK_HANDLERS": "bench.programs.credhook_events:nothing"},
)
RQ_SIMPLE: Final = _rq("rq-simple", "SimpleWorker")
DRAMATIQ: Final = Competitor(
    "dramatiq",
    "dramatiq, 64 threads",
    64,
    _program("dramatiq_actors"),
    ("-m", "dramatiq", "bench.programs.dramatiq_actors", "--processes", "1", "--threads", "64"),
    ("dramatiq:default", "dramatiq:default.msgs", "dramatiq:default.XQ"),
    _in("dramatiq_actors"),
)
BULLMQ: Final = Competitor(
    "bullmq",
    "Node: BullMQ, 100 at once",
    100,
    ("fill",),
    (),
    tuple(f"bull:events:{state}" for state in ("wait", "active", "delayed", "prioritized", "failed")),
    lambda: ("node", environments.node(PROGRAMS / "bullmq_jobs.mjs")),
    settings={"NODE_ENV": "production"},
)
LIMIT: Final = Competitor("bare-httpx", "bare httpx", 100, (), _program("bare_httpx"), ())

#: With more at once: who can.
OURS_CROWDED: Final = _crowded(OURS)
BULLMQ_CROWDED: Final = _crowded(BULLMQ)

#: Whom Python has.
PEERS: Final = (RQ_SIMPLE, DRAMATIQ)
#: Who is measured with other latencies of the API, too.
SWIFT: Final = (OURS, OURS_CROWDED, BULLMQ, BULLMQ_CROWDED, LIMIT)
COMPETITORS: Final = {each.name: each for each in (*SWIFT, *PEERS)}


def ours_beside(name: str) -> str:
    """Ours with as many at once as a competitor may have, or with 100 beside those that may have fewer."""
    return OURS_CROWDED.name if COMPETITORS[name].slots == _CROWD else OURS.name
