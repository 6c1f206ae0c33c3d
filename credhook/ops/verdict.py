"""The result of one check, and the results of the checks from outside that the workers keep in Redis."""

from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel

from credhook.store.store import SyncStore


class Verdict(StrEnum):
    """The result of one check."""

    OK = "ok"
    #: Worth knowing; nothing has to be done.
    NOTE = "note"
    #: It works now, but needs attention.
    WARN = "warn"
    FAIL = "fail"
    #: The check does not apply to this host.
    SKIPPED = "skipped"


class Finding(NamedTuple):
    """The result of one check, as one line.

    Attributes:
        name: stable name of the check: its group, a dot, its subject.
        what: what the check found, or why the check was skipped.
        remedy: what to do; empty if there is nothing to do.
    """

    verdict: Verdict
    name: str
    what: str
    remedy: str = ""

    @property
    def needs_attention(self) -> bool:
        """Return True for a warning or a failure."""
        return self.verdict in {Verdict.WARN, Verdict.FAIL}


ok = partial(Finding, Verdict.OK)
warn = partial(Finding, Verdict.WARN)
fail = partial(Finding, Verdict.FAIL)
skipped = partial(Finding, Verdict.SKIPPED)

#: A problem, and what to do about it.
Problem = tuple[str, str]


def split_remedy(text: str) -> Problem:
    """Split `problem; remedy` at the first semicolon. The remedy may be missing."""
    problem, _, remedy = text.partition("; ")
    return problem, remedy


class Outside(BaseModel):
    """The findings of the last checks from outside, see outside.py.

    Attributes:
        at: when they were made, in ms by Redis's clock.
    """

    at: int
    findings: tuple[Finding, ...]

    @property
    def skipped(self) -> tuple[Finding, ...]:
        """Return the checks that were not made."""
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.SKIPPED)


def read_outside(store: SyncStore) -> Outside | None:
    """Return the last result, or None if there is none."""
    text: Any = store.redis.get(store.keys.outside)
    return Outside.model_validate_json(text) if text else None
