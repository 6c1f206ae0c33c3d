"""Who runs on which core: the server under test has one to itself, the load and Redis share the others."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: The cores that this process was given; empty where the system cannot pin (macOS).
_OURS: Final = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()

PINNED: Final = len(_OURS) > 1
ALL: Final = frozenset(_OURS)
SERVER: Final = frozenset(_OURS[:1])
LOAD: Final = frozenset(_OURS[1:])


@contextmanager
def on(cores: frozenset[int]) -> Iterator[None]:
    """Run the block, and every process that it starts, on these cores."""
    if not PINNED:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def described() -> str:
    """For the report: who ran where."""
    if not PINNED:
        return "not pinned to cores"
    load = ", ".join(map(str, sorted(LOAD)))
    return f"server pinned to core {_OURS[0]}, load generator and Redis to core {load}"
