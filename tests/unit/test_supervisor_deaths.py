"""What a supervisor does about a death. It lives for months: none may cost it a descriptor."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from credhook.worker.process.supervisor import Supervisor


@pytest.fixture
def supervisor() -> Iterator[Any]:
    made: Any = Supervisor(1, [], lease=15.0, grace=1.0)
    yield made
    os.close(made._lifeline)
    os.close(made._held)


def descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def test_the_descriptors_of_a_worker_that_died_are_closed(supervisor: Any) -> None:
    supervisor._command = ["true"]
    before = descriptors()
    child = supervisor._start(0)
    child.process.wait()
    assert len(descriptors()) > len(before)
    supervisor._reap(0, child, 1)
    assert descriptors() == before


def test_so_are_those_of_one_that_could_not_be_started(supervisor: Any) -> None:
    supervisor._command = ["/nowhere/credhook"]
    before = descriptors()
    assert supervisor._start(0) is None
    assert descriptors() == before


@pytest.mark.parametrize(
    ("code", "replaced", "fault"),
    [(1, False, "1"), (-signal.SIGSEGV, False, "1"), (-signal.SIGKILL, False, "0"), (-signal.SIGKILL, True, "1")],
)
def test_the_next_worker_is_told_whose_fault_a_death_was(
    supervisor: Any, code: int, replaced: bool, fault: str
) -> None:
    """Who kills from outside, be it an operator or a machine short of memory, does not say what for."""
    supervisor._command = ["true"]
    child = supervisor._start(0)
    child.process.wait()
    child.replaced = replaced
    supervisor._reap(0, child, code)
    assert supervisor._died == [[f"{child.token}:{fault}"]]
