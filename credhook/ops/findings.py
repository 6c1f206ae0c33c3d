"""What a check found, and how to run groups of checks side by side."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

#: Seconds that a group of checks may take. Each question inside has a shorter time-out of its own.
GROUP_SECONDS: Final = 20.0


class Verdict(StrEnum):
    """The result of one check."""

    OK = "ok"
    #: It works now, but needs attention.
    WARN = "warn"
    FAIL = "fail"
    #: The check does not apply to this host, or needs something that failed before.
    SKIPPED = "skipped"


class Finding(NamedTuple):
    """The result of one check, as one line.

    Attributes:
        name: stable name of the check: its group, a dot, its subject.
        verdict: the result.
        what: what the check found, or why the check was skipped.
        remedy: what to do; empty if there is nothing to do.
    """

    name: str
    verdict: Verdict
    what: str
    remedy: str = ""

    @property
    def needs_attention(self) -> bool:
        """Return True for a warning or a failure."""
        return self.verdict in {Verdict.WARN, Verdict.FAIL}


def ok(name: str, what: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(name, Verdict.OK, what)


def warn(name: str, what: str, remedy: str) -> Finding:
    """Return a warning."""
    return Finding(name, Verdict.WARN, what, remedy)


def fail(name: str, what: str, remedy: str) -> Finding:
    """Return a failure."""
    return Finding(name, Verdict.FAIL, what, remedy)


def skipped(name: str, why: str) -> Finding:
    """Return a finding for a check that was not run."""
    return Finding(name, Verdict.SKIPPED, why)


def split_remedy(text: str) -> tuple[str, str]:
    """Split `problem; remedy` at the first semicolon. The remedy may be missing."""
    problem, _, remedy = text.partition("; ")
    return problem, remedy


class CheckGroup(NamedTuple):
    """Checks that build on each other.

    Attributes:
        names: all checks of the group, in display order.
        run: runs the checks and yields each finding at once. It may block.
        slow: what to look at if the group does not end.
    """

    names: tuple[str, ...]
    run: Callable[[], Iterable[Finding]]
    slow: str = ""


def examine(groups: Sequence[CheckGroup], seconds: float = GROUP_SECONDS) -> list[Finding]:
    """Run the groups in parallel and return the first finding of each check, in display order.

    A check that has not answered in time has failed. A thread may stay stuck, for instance in a name server's
    answer, so the caller should end the process soon.
    """
    findings: dict[str, Finding] = {}

    def run(group: CheckGroup) -> None:
        try:
            for finding in group.run():
                findings.setdefault(finding.name, finding)
        except Exception as error:  # noqa: BLE001  A defect in one group must not hide the findings of the others.
            for name in group.names:
                findings.setdefault(name, fail(name, f"the check itself failed ({type(error).__name__})", "report it"))

    threads = [threading.Thread(target=run, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for group, thread in zip(groups, threads, strict=True):
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            for name in group.names:
                findings.setdefault(name, fail(name, f"no answer within {seconds:g} s", group.slow))
    return [findings[name] for group in groups for name in group.names if name in findings]
