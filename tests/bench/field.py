"""The field: who takes part, how each is started, and where its jobs can be counted."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench import environments
from bench.environments import CONTENDERS

#: uvicorn as our receiver sets it up; uvloop and httptools are what it chooses where they are installed, as they are here.
_UVICORN: Final = (
    *("-m", "uvicorn", "--app-dir", str(CONTENDERS), "--loop", "uvloop", "--http", "httptools"),
    *("--no-access-log", "--no-proxy-headers", "--no-server-header", "--log-level", "warning"),
)


def _ours() -> Path:
    """This project's own interpreter: Starlette and RQ are among our requirements, in the very versions we run on."""
    return Path(sys.executable)


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to receive webhooks.

    Attributes:
        name: for options and for the results' file.
        title: for people.
        interpreter: finds or makes the environment that it runs in, and returns what runs it.
        arguments: of the interpreter.
        jobs: Redis key of the list that its jobs wait in; None if it makes none.
        appendfsync: how its Redis is configured.
        settings: environment variables of its own.
    """

    name: str
    title: str
    interpreter: Callable[[], Path]
    arguments: tuple[str, ...]
    jobs: str | None
    appendfsync: str = "always"
    settings: dict[str, str] = field(default_factory=dict)


STRICT: Final = Contender(
    "strict", "credhook, strict", _ours, ("-m", "receiver"), "rq:queue:credhook", settings={"CREDHOOK_DURABILITY": "strict"}
)
STANDARD: Final = Contender(
    "standard",
    "credhook, standard",
    _ours,
    ("-m", "receiver"),
    "rq:queue:credhook",
    appendfsync="everysec",
    settings={"CREDHOOK_DURABILITY": "standard"},
)
STARLETTE_RQ: Final = Contender(
    "starlette-rq", "Starlette + RQ in a thread", _ours, (*_UVICORN, "starlette_rq:app"), "rq:queue:default"
)
FASTAPI_CELERY: Final = Contender(
    "fastapi-celery",
    "FastAPI + Celery",
    lambda: environments.python(CONTENDERS / "fastapi_celery.txt"),
    (*_UVICORN, "fastapi_celery:app"),
    "celery",
)
FASTIFY_BULLMQ: Final = Contender(
    "fastify-bullmq",
    "Node: fastify + BullMQ",
    lambda: environments.node(CONTENDERS / "fastify_bullmq.mjs"),
    (),
    "bull:events:wait",
)
BARE: Final = Contender("bare", "bare Starlette (no work)", _ours, (*_UVICORN, "bare:app"), None)

ALL: Final = {each.name: each for each in (STRICT, STANDARD, FASTIFY_BULLMQ, FASTAPI_CELERY, STARLETTE_RQ, BARE)}
