"""The competitors: how each is started and filled, and where its jobs can be counted."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import click
from bench import machine
from bench.machine import PROGRAMS, Missing

#: Events under way at once, for the competitors that can.
_CROWD: Final = 400


@dataclass(frozen=True, slots=True)
class Competitor:
    """A way to receive webhooks or to work on events.

    Attributes:
        name, title: for options and the file of results, and for people.
        interpreter: begins its commands; makes the environment that they need, or raises `Missing`. `arguments` follow.
        appendfsync: how its Redis is configured.
        settings: its own environment variables.
        jobs: of a receiver: the Redis list of its jobs, if it makes any.
        verifies: of a receiver: True if it authenticates and deduplicates.
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

    def command(self) -> tuple[str | Path, ...]:
        return (*self.interpreter(), *self.arguments)


def chosen(names: Sequence[str], competitors: Mapping[str, Competitor]) -> list[Competitor]:
    """Return the competitors of these names whose environments are there or could be made."""
    able = []
    for name in names:
        if name not in competitors:
            raise click.BadParameter(f"{name!r} is none of {', '.join(competitors)}", param_hint="--competitors")
        try:
            competitors[name].interpreter()
        except Missing as missing:
            machine.say(f"{competitors[name].title} does not take part: {missing}")
        else:
            able.append(competitors[name])
    if not able:
        raise click.ClickException("no competitor is left")
    return able


def _node(program: str) -> Callable[[], tuple[str | Path, ...]]:
    return lambda: ("node", machine.node(PROGRAMS / program))


def _receiver(durability: str, appendfsync: str) -> Competitor:
    return Competitor(
        durability,
        f"credhook, {durability}",
        ("-m", "credhook.receiver"),
        appendfsync=appendfsync,
        settings={"CREDHOOK_DURABILITY": durability},
        jobs="rq:queue:credhook",
    )


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
#: The limit: without any Redis, on uvicorn as our receiver sets it up. It chooses uvloop and httptools itself.
BARE: Final = Competitor(
    "bare",
    "bare Starlette",
    (
        *("-m", "uvicorn", "bare:app", "--app-dir", str(PROGRAMS), "--log-level", "warning"),
        *("--no-access-log", "--no-proxy-headers", "--no-server-header"),
    ),
    verifies=False,
)

RECEIVERS: Final = {each.name: each for each in (STRICT, STANDARD, FASTIFY, FASTIFY_EVERYSEC, BARE)}


def _program(module: str) -> tuple[str, ...]:
    return ("-m", f"bench.programs.{module}")


OURS: Final = Competitor(
    "credhook",
    "credhook",
    ("-m", "credhook.worker"),
    settings={"CREDHOOK_HANDLERS": "bench.programs.credhook_events:nothing"},
    slots=100,
    filler=_program("credhook_events"),
    unfinished=("rq:queue:credhook", "rq:failed:credhook", "credhook:credhook:open", "credhook:credhook:dead"),
)
DRAMATIQ: Final = Competitor(
    "dramatiq",
    "dramatiq, 64 threads",
    ("-m", "dramatiq", "bench.programs.dramatiq_actors", "--processes", "1", "--threads", "64"),
    lambda: (machine.python(PROGRAMS / "dramatiq_actors.txt"),),
    appendfsync="everysec",
    slots=64,
    filler=_program("dramatiq_actors"),
    unfinished=("dramatiq:default", "dramatiq:default.msgs", "dramatiq:default.XQ"),
)
BULLMQ: Final = Competitor(
    f"bullmq-{_CROWD}",
    f"Node: BullMQ, {_CROWD} at once",
    interpreter=_node("bullmq_jobs.mjs"),
    appendfsync="everysec",
    settings={"NODE_ENV": "production"},
    slots=_CROWD,
    filler=("fill",),
    unfinished=tuple(f"bull:events:{state}" for state in ("wait", "active", "delayed", "prioritized", "failed")),
)
OURS_CROWDED: Final = replace(OURS, name=f"credhook-{_CROWD}", title=f"credhook, {_CROWD} at once", slots=_CROWD)
OURS_BY_HTTPX: Final = replace(
    OURS,
    name="credhook-httpx",
    title="credhook, by httpx",
    settings={**OURS.settings, "CREDHOOK_HTTP_CLIENT": "httpx"},
)

WORKERS: Final = {each.name: each for each in (OURS, OURS_CROWDED, OURS_BY_HTTPX, BULLMQ, DRAMATIQ)}
