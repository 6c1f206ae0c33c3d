"""When the platform is left alone, and how calling it begins again. Pure: what happened goes in, a decision comes out.

    closed ──▶ open         it asked for a pause, or failures outweigh answers
      ▲         │ ▲
      │         ▼ │         the pause is over; the probe failed
      └───── half open      one call for the whole fleet; it was answered

Failures are weighed by a score: a failure adds one, an answer takes one away, never below nothing, and at `THRESHOLD`
it opens (Page's cumulative sum). A count of consecutive failures is reset by the one answer in twenty that a failing
platform still gives, and in a large fleet chance makes five in a row; a ratio over a window dilutes the first failures
with the answers of the minute before. The score opens after ten calls of an outage, whatever went before, soon when
most calls fail, and next to never when fewer than a fifth do. While it is nothing, an answer changes nothing and
so need not be reported, which is what makes good days free.

A 401 to a fresh token is weighed as one failure, like a 500. Were it more, a single resource that we may not read
could open the breaker by its own repetitions: five or so fall into the time that a score is remembered. Where nothing
is answered otherwise, ten come soon enough: the calls that are waiting are tried one after the other (trial.py).
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import reduce
from typing import Final, Self

from credhook.backoff import Backoff
from credhook.worker.api.calls.errors import Unavailable

#: Failures, less answers, that open the breaker.
THRESHOLD: Final = 10

#: Pauses that nobody asked for: they double as probes fail, and chance takes up to half of each.
PAUSES: Final = Backoff(first=1.0, longest=30.0, jitter=0.5)

#: Pauses that one for refused credentials counts as having had before it: somebody has to mend something first.
PATIENT: Final = 2

#: The longest pause that the platform may ask for, in seconds.
LONGEST_ASKED: Final = 3_600.0

#: Seconds added to a pause that was asked for: processes read each other's deadlines to within a round trip.
MARGIN: Final = 0.05

#: Slow start is over once so many events may be taken at once, more than one process works on; or after so many
#: seconds, in which all that was taken may have had nothing to call for.
STARTED: Final = 256
STARTED_AFTER: Final = 30


class PlatformPaused(Unavailable):
    """A call that was refused without being sent; `retry_after` is always there."""


class Phase(Enum):
    """What may be done."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class Kind(Enum):
    """What a call came to, as far as it concerns the others."""

    #: The platform works: also when what it says is 404, or 403, which concerns one resource or operation.
    ANSWERED = "answered"
    #: It answered with 5xx, 408 or 425, or not at all.
    FAILED = "failed"
    #: It does not take a token that was fetched for this call: 401.
    UNAUTHORIZED = "unauthorized"
    #: It asked to be left alone: 429, or 503 with Retry-After.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call's end.

    Attributes:
        kind: see there.
        at: when, by a clock in seconds that the circuit's `until` is read on as well.
        wait: seconds that the platform asks for, or None.
        probe: whether it was the call that was let through to try.
        cause: for logs: a status, or the class of an error.
        chance: from 0 to 1, drawn once, so that the same outcome always leads to the same decision.
    """

    kind: Kind
    at: float
    wait: float | None = None
    probe: bool = False
    cause: str = ""
    chance: float = field(default_factory=random.random)


@dataclass(frozen=True, slots=True)
class Circuit:
    """What is known of the platform.

    Attributes:
        is_open: calls are not simply made.
        score: failures, less answers.
        trips: pauses in a row that nobody asked for; some more for refused credentials.
        until: when the pause ends, in seconds of the outcomes' clock.
    """

    is_open: bool = False
    score: int = 0
    trips: int = 0
    until: float = 0.0

    def phase(self, now: float) -> Phase:
        """What may be done at that moment."""
        if not self.is_open:
            return Phase.CLOSED
        return Phase.OPEN if now < self.until else Phase.HALF_OPEN

    def after(self, outcome: Outcome) -> Self:
        """The circuit once a call has ended so; the same if that changes nothing.

        While open only the probe counts, save a pause that the platform asks for: the others were sent before.
        """
        phase = self.phase(outcome.at)
        if outcome.kind is Kind.REFUSED and outcome.wait:
            until = outcome.at + min(outcome.wait, LONGEST_ASKED) + MARGIN
            return replace(self, is_open=True, score=0, until=max(self.until, until))
        if phase is Phase.OPEN or (phase is Phase.HALF_OPEN and not outcome.probe):
            return self
        if outcome.kind is Kind.ANSWERED:
            return type(self)(score=max(0, self.score - 1))
        if outcome.kind is Kind.REFUSED or phase is Phase.HALF_OPEN or self.score + 1 >= THRESHOLD:
            trips = max(self.trips, PATIENT) if outcome.kind is Kind.UNAUTHORIZED else self.trips
            pause = PAUSES.wait(trips + 1, outcome.chance)
            return type(self)(is_open=True, trips=trips + 1, until=outcome.at + pause)
        return replace(self, score=self.score + 1)

    def after_all(self, outcomes: Iterable[Outcome]) -> Self:
        """The circuit after one outcome upon the other."""
        return reduce(type(self).after, outcomes, self)


class SlowStart:
    """How many events one process may take once the platform is well again: 1, 2, 4, …, doubling as calls succeed."""

    def __init__(self) -> None:
        #: None: as many as it likes.
        self._left: int | None = None
        self._seconds = 0

    def begin(self) -> None:
        """Start with one."""
        self._left, self._seconds = 1, 0

    def allows(self, wanted: int) -> int:
        """How many of those may be taken."""
        return wanted if self._left is None else min(wanted, self._left)

    def took(self, count: int) -> None:
        """They were taken."""
        if self._left is not None:
            self._left -= count

    def succeeded(self) -> None:
        """One of them was fetched: two may follow it."""
        if self._left is not None:
            self._left += 2
            if self._left >= STARTED:
                self._left = None

    def second_passed(self) -> None:
        """Allow one more if none is left: those that were taken may never have called."""
        if self._left is not None:
            self._seconds += 1
            self._left = max(1, self._left) if self._seconds < STARTED_AFTER else None


#: How an outcome reads a status. Retry-After counts where the platform speaks of itself rather than of the request.
_TOO_MANY, _UNAVAILABLE, _FAULT = 429, 503, 500
_UNAUTHORIZED = 401
_PASSING: Final = {408, 425}


def outcome_of(status: int | None, wait: float | None, *, at: float, probe: bool = False, cause: str = "") -> Outcome:
    """Read an answer, and its Retry-After in seconds; of none, `cause` says why.

    A status of 401 comes here only if the token was fresh.
    """
    if status is None:
        return Outcome(Kind.FAILED, at, probe=probe, cause=cause)
    if status == _TOO_MANY or (status == _UNAVAILABLE and wait):
        return Outcome(Kind.REFUSED, at, wait, probe, str(status))
    if status == _UNAUTHORIZED:
        return Outcome(Kind.UNAUTHORIZED, at, probe=probe, cause=str(status))
    kind = Kind.FAILED if status >= _FAULT or status in _PASSING else Kind.ANSWERED
    return Outcome(kind, at, probe=probe, cause=str(status))
