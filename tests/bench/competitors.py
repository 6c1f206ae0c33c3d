"""The competitors: who takes part, how each is started, and where its jobs can be counted."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bench import environments
from bench.environments import PROGRAMS

#: uvicorn as our receiver sets it up; uvloop and httptools are what it chooses itself where they are installed.
_UVICORN: Final = (
    *("-m", "uvicorn", "--app-dir", str(PROGRAMS), "--loop", "uvloop", "--http", "httptools"),
    *("--no-access-log", "--no-proxy-headers", "--no-server-header", "--log-level", "warning"),
)


@dataclass(frozen=True, slots=True)
class Competitor:
    """One way to receive webhooks.

    Attributes:
        name: for options and for the results' file.
        title: for people.
        command: what starts its server; makes the environment that it needs, and raises `Missing` if it cannot.
        jobs: Redis key of the list that its jobs wait in; None if it makes none.
        appendfsync: how its Redis is configured.
        settings: environment variables of its own.
        verifies: whether it authenticates and deduplicates.
    """

    name: str
    title: str
    command: Callable[[], tuple[str | Path, ...]]
    jobs: str | None
    appendfsync: str = "always"
    settings: dict[str, str] = field(default_factory=dict)
    verifies: bool = True


def _receiver(title: str, durability: str, appendfsync: str) -> Competitor:
    return Competitor(
        durability,
        title,
        lambda: (sys.executable, "-m", "credhook.receiver"),
        "rq:queue:credhook",
        appendfsync,
        {"CREDHOOK_DURABILITY": durability},
    )


def _on_uvicorn(app: str) -> tuple[str | Path, ...]:
    return (sys.executable, *_UVICORN, f"{app}:app")


STRICT: Final = _receiver("credhook, strict", "strict", "always")
STANDARD: Final = _receiver("credhook, standard", "standard", "everysec")
FASTIFY_BULLMQ: Final = Competitor(
    "fastify-bullmq",
    "Node: fastify + BullMQ",
    lambda: ("node", environments.node(PROGRAMS / "fastify_bullmq.mjs")),
    "bull:events:wait",
)
FASTIFY_BULLMQ_EVERYSEC: Final = replace(
    FASTIFY_BULLMQ, name="fastify-bullmq-everysec", title="Node: fastify + BullMQ, everysec", appendfsync="everysec"
)
BARE: Final = Competitor("bare", "bare Starlette", lambda: _on_uvicorn("bare"), None, verifies=False)
GROUPED: Final = Competitor(
    "grouped", "bare Starlette with a grouped write", lambda: _on_uvicorn("grouped_writes"), "written", verifies=False
)

#: What could be reached: without any Redis, and with one that is as sure.
LIMITS: Final = (BARE, GROUPED)

COMPETITORS: Final = {each.name: each for each in (STRICT, STANDARD, FASTIFY_BULLMQ, FASTIFY_BULLMQ_EVERYSEC, *LIMITS)}
