"""What a check has found."""

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """How it stands."""

    OK = "ok"
    #: It works, and will not go on doing so, or not as it was meant.
    WARN = "warn"
    FAIL = "fail"
    #: It could not be tried here, and that is no mistake.
    SKIPPED = "skipped"


class Finding(NamedTuple):
    """One line.

    Attributes:
        name: of the check, stable: its theme, a dot, and what it is about.
        verdict: how it stands.
        what: was found, or why it was skipped.
        remedy: what to do; empty where there is nothing to.
    """

    name: str
    verdict: Verdict
    what: str
    remedy: str = ""


def ok(name: str, what: str) -> Finding:
    """It is as it should be."""
    return Finding(name, Verdict.OK, what)


def warn(name: str, what: str, remedy: str) -> Finding:
    """It wants attention soon."""
    return Finding(name, Verdict.WARN, what, remedy)


def fail(name: str, what: str, remedy: str) -> Finding:
    """It wants attention now."""
    return Finding(name, Verdict.FAIL, what, remedy)


def skipped(name: str, why: str) -> Finding:
    """It could not be tried here."""
    return Finding(name, Verdict.SKIPPED, why)


def apart(text: str) -> tuple[str, str]:
    """What is wrong and what to do, of a line that says both: `…; …`, or the first without the second."""
    what, _, remedy = text.partition("; ")
    return what, remedy
