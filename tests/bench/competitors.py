"""The competitors: how each is started and filled, and where its jobs can be counted."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import click
from bench import environments
from bench.environments import PROGRAMS, Missing

#: Events under way at once, for the competitors that can.
_CROWD: Final = 400


@dataclass(frozen=True, slots=True)
class Competitor:
    """A way to receive webhooks or to work on events.

    Attributes:
        name: for options and in the file of results.
        title: for people.
        arguments: given to the interpreter to start it.
        interpreter: begins its commands; makes the environment that they need, or raises `Missing`.
        appendfsync: how its Redis is configured.
        settings: its own environment variables.
        jobs: of a receiver: the Redis list of its jobs, if it makes any.
        verifies: of a receiver: whether it authenticates and deduplicates.
        slots: of a worker: how many events it may have under way.
        filler: of a worker: given to the interpreter to fill the queue, if it has one.
        unfinished: of a worker: Redis keys that exist as long as anything is left to do, or has failed.
    """

    name: str
    title: str
    arguments: tuple[str, ...] = ()
    interpreter: Callable[[], tuple[str | Path, ...]] = lambda: (sys.executable,)
    appendfsync: str = "always"
    settings: Mapping[str, str] = field(default_factory=dict)
    jobs: str | None = None
    verifies: bool = True
    slots: int = 1
    filler: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    def command(self, *options: str) -> tuple[str | Path, ...]:
        return (*self.interpreter(), *self.arguments, *options)


def chosen(names: Sequence[str], competitors: Mapping[str, Competitor]) -> list[Competitor]:
    """Return the competitors of these names whose environments are there or could be made."""
    able = []
    for name in names:
        if name not in competitors:
            raise click.BadParameter(f"{name!r} is none of {', '.join(competitors)}", param_hint="--competitors")
        try:
            competitors[name].interpreter()
        except Missing as missing:
            environments.say(f"{competitors[name].title} does not take part: {missing}")
        else:
            able.append(competitors[name])
    if not able:
        raise click.ClickException("no competitor is left")
    return able


def _node(program: str) -> Callable[[], tuple[str | Path, ...]]:
    return lambda: ("node", environments.node(PROGRAMS / program))


def _receiver(durability: str, appendfsync: str) -> Competitor:
    return Competitor(
        durability,
        f"credhook, {durability}",
        ("-m", "credhook.receiver"),
        appendfsync=appendfsync,
        settings={"CREDHOOK_DURABILITY": durability},
        jobs="rq:queue:credhook",
    )


def _on_uvicorn(name: str, title: str, app: str, jobs: str | None) -> Competitor:
    # As our receiver sets uvicorn up. It chooses uvloop and httptools itself where they are installed.
    options = f"--app-dir {PROGRAMS} --loop uvloop --http httptools --no-access-log --no-proxy-headers"
    arguments = ("-m", "uvicorn", *options.split(), "--no-server-header", "--log-level", "warning", f"{app}:app")
    return Competitor(name, title, arguments, jobs=jobs, verifies=False)


STRICT: Final = _receiver("strict", "always")
STANDARD: Final = _receiver("standard", "everysec")
FASTIFY: Final = Competitor(
    "fastify-bullmq",
    "Node: fastify + BullMQ",
    interpreter=_node("fastify_bullmq.mjs"),
    settings={"NODE_ENV": "production"},
    jobs="bull:events:wait",
)
FASTIFY_EVERYSEC: Final = replace(
    FASTIFY, name="fastify-bullmq-everysec", title=f"{FASTIFY.title}, everysec", appendfsync="everysec"
)
#: The limits: without any Redis, and with one write to Redis that is as durable.
BARE: Final = _on_uvicorn("bare", "bare Starlette", "bare", None)
GROUPED: Final = _on_uvicorn("grouped", "bare Starlette with a grouped write", "grouped_writes", "written")

RECEIVERS: Final = {each.name: each for each in (STRICT, STANDARD, FASTIFY, FASTIFY_EVERYSEC, BARE, GROUPED)}


def _program(module: str) -> tuple[str, ...]:
    return ("-m", f"bench.programs.{module}")


def _crowded(competitor: Competitor) -> Competitor:
    title = competitor.title.partition(",")[0]
    return replace(competitor, name=f"{competitor.name}-{_CROWD}", title=f"{title}, {_CROWD} at once", slots=_CROWD)


#: RQ and httpx are among our requirements, in the versions that our worker runs on.
OURS: Final = Competitor(
    "credhook",
    "credhook",
    ("-m", "credhook.worker"),
    settings={"CREDHOOK_HANDLERS": "bench.programs.credhook_events:nothing"},
    slots=100,
    filler=_program("credhook_events"),
    unfinished=("rq:queue:credhook", "rq:failed:credhook", "credhook:credhook:open", "credhook:credhook:dead"),
)
RQ_SIMPLE: Final = Competitor(
    "rq-simple",
    "RQ, SimpleWorker",
    ("-m", "rq.cli", "worker", "--quiet", "--worker-class", "rq.worker.SimpleWorker"),
    appendfsync="everysec",
    filler=_program("rq_jobs"),
    unfinished=("rq:queue:default", "rq:intermediate:default", "rq:wip:default", "rq:failed:default"),
)
DRAMATIQ: Final = Competitor(
    "dramatiq",
    "dramatiq, 64 threads",
    ("-m", "dramatiq", "bench.programs.dramatiq_actors", "--processes", "1", "--threads", "64"),
    lambda: (environments.python(PROGRAMS / "dramatiq_actors.txt"),),
    appendfsync="everysec",
    slots=64,
    filler=_program("dramatiq_actors"),
    unfinished=("dramatiq:default", "dramatiq:default.msgs", "dramatiq:default.XQ"),
)
BULLMQ: Final = Competitor(
    "bullmq",
    "Node: BullMQ, 100 at once",
    interpreter=_node("bullmq_jobs.mjs"),
    appendfsync="everysec",
    settings={"NODE_ENV": "production"},
    slots=100,
    filler=("fill",),
    unfinished=tuple(f"bull:events:{state}" for state in ("wait", "active", "delayed", "prioritized", "failed")),
)
#: The limit: the same requests without queue and Redis.
HTTPX: Final = Competitor("bare-httpx", "bare httpx", _program("bare_httpx"), appendfsync="everysec", slots=100)
OURS_CROWDED: Final = _crowded(OURS)
BULLMQ_CROWDED: Final = _crowded(BULLMQ)

#: Measured with other latencies of the API, too.
SWIFT: Final = (OURS, OURS_CROWDED, BULLMQ, BULLMQ_CROWDED, HTTPX)
WORKERS: Final = {each.name: each for each in (*SWIFT, RQ_SIMPLE, DRAMATIQ)}
