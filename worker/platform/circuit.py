"""The circuit breaker's decisions. Pure: call outcomes go in, and the next circuit comes out.

    closed ──▶ open         the platform asked for a pause, or failures outweigh answers
      ▲         │ ▲
      │         ▼ │         the pause is over; the probe failed
      └───── half open      one probe for the whole fleet; the platform answered it

A score weighs failures: a failure adds one, an answer takes one away, and at `THRESHOLD` the circuit opens (Page's
cumulative sum). Consecutive failures would be reset by the few answers of a failing platform. A ratio over a window
would dilute the first failures with earlier answers. The score opens after ten calls of an outage, and almost never
when fewer than a fifth of the calls fail. At score 0 an answer changes nothing, so a healthy platform costs no Redis
command.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from typing import Final, NamedTuple, Self

from credhook.backoff import Backoff
from credhook.worker.api.errors import Unavailable

#: Failures minus answers at which the circuit opens.
THRESHOLD: Final = 10
#: Pauses that the platform did not ask for, in seconds. They double as probes fail.
PAUSES: Final = Backoff(first=1.0, longest=30.0, jitter=0.5)
#: Longest Retry-After that is honoured. Then one call of the fleet asks again: a mistaken hour must not stop the fleet
#: for an hour, and presented data may be readable for 15 minutes.
MAX_RETRY_AFTER_SECONDS: Final = 300.0
#: Added to a requested pause, so that no process calls a moment too early.
MARGIN_SECONDS: Final = 0.05
#: Slow start ends at this budget, which is more than one process works on, or after this many seconds.
SLOW_START_BUDGET: Final = 256
SLOW_START_SECONDS: Final = 30

_TOO_MANY_REQUESTS, _SERVICE_UNAVAILABLE, _SERVER_ERROR = 429, 503, 500
_TRANSIENT: Final = {401, 408, 425}


class PlatformPaused(Unavailable):
    """The circuit breaker or the rate limit refused the call, and it was not sent. `retry_after` is always set."""


class Phase(Enum):
    """Phase of a circuit."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class CallResult(Enum):
    """Result of one call, as far as it concerns the platform."""

    #: The platform works. A 404 or 403 concerns one resource, so it counts as an answer.
    ANSWERED = "answered"
    #: 5xx, 408, 425, no answer at all, or 401 for a fresh token.
    FAILED = "failed"
    #: The platform asked for a pause: 429, or 503 with Retry-After.
    REFUSED = "refused"


class CallOutcome(NamedTuple):
    """The end of one call.

    Attributes:
        result: what it says about the platform.
        at: monotonic seconds, on the same clock as the circuit's `until`.
        chance: from 0 to 1. Drawn once, so that the same outcome always leads to the same decision.
        retry_after: seconds that the platform asks for, or None.
        probe: True for the call that probes an open circuit.
        cause: for logs: a status, or the class of an error.
    """

    result: CallResult
    at: float
    chance: float
    retry_after: float | None = None
    probe: bool = False
    cause: str = ""


def outcome_of(
    status: int | None, retry_after: float | None, *, at: float, probe: bool = False, cause: str = ""
) -> CallOutcome:
    """Read a response's status and Retry-After. Without a response, `status` is None and `cause` says why."""
    chance = random.random()  # noqa: S311  Jitter, no secret.
    if status is None:
        return CallOutcome(CallResult.FAILED, at, chance, None, probe, cause)
    if status == _TOO_MANY_REQUESTS or (status == _SERVICE_UNAVAILABLE and retry_after):
        return CallOutcome(CallResult.REFUSED, at, chance, retry_after, probe, str(status))
    failed = status >= _SERVER_ERROR or status in _TRANSIENT
    return CallOutcome(CallResult.FAILED if failed else CallResult.ANSWERED, at, chance, None, probe, str(status))


@dataclass(frozen=True, slots=True)
class Circuit:
    """State of one platform's circuit breaker.

    Attributes:
        is_open: True while open or half open.
        score: failures minus answers.
        trips: consecutive pauses that the platform did not ask for.
        until: end of the pause, in seconds of the outcomes' clock.
    """

    is_open: bool = False
    score: int = 0
    trips: int = 0
    until: float = 0.0

    def phase(self, now: float) -> Phase:
        """Return the phase at that moment."""
        if not self.is_open:
            return Phase.CLOSED
        return Phase.OPEN if now < self.until else Phase.HALF_OPEN

    def pause(self, now: float) -> float:
        """Return the seconds until a call may be sent; 0 if now."""
        return max(0.0, self.until - now) if self.is_open else 0.0

    def after(self, outcome: CallOutcome) -> Self:
        """Return the circuit after one call.

        While the circuit is open, other calls were sent before it opened. They only count if they ask for a pause.
        """
        phase = self.phase(outcome.at)
        if outcome.result is CallResult.REFUSED and outcome.retry_after:
            until = outcome.at + min(outcome.retry_after, MAX_RETRY_AFTER_SECONDS) + MARGIN_SECONDS
            return replace(self, is_open=True, score=0, until=max(self.until, until))
        if phase is Phase.OPEN or (phase is Phase.HALF_OPEN and not outcome.probe):
            return self
        if outcome.result is CallResult.ANSWERED:
            return type(self)(score=max(0, self.score - 1))
        if outcome.result is CallResult.REFUSED or phase is Phase.HALF_OPEN or self.score + 1 >= THRESHOLD:
            pause = PAUSES.wait(self.trips + 1, outcome.chance)
            return type(self)(is_open=True, trips=self.trips + 1, until=outcome.at + pause)
        return replace(self, score=self.score + 1)

    def after_all(self, outcomes: Iterable[CallOutcome]) -> Self:
        """Return the circuit after these calls, in order."""
        return reduce(type(self).after, outcomes, self)


class SlowStart:
    """Budget of events that one process may claim after a pause: 1, 2, 4, …, doubling as calls succeed."""

    def __init__(self) -> None:
        self._budget = math.inf  # No limit.
        self._seconds = 0

    def begin(self) -> None:
        """Start with a budget of one event."""
        self._budget, self._seconds = 1, 0

    def allows(self, wanted: int) -> int:
        """Return how many of `wanted` events may be claimed."""
        return int(min(wanted, self._budget))

    def spend(self, count: int) -> None:
        """Take claimed events off the budget; a negative number gives some back."""
        self._budget -= count

    def succeeded(self) -> None:
        """Let two more events follow each fetched event."""
        self._budget += 2
        if self._budget >= SLOW_START_BUDGET:
            self._budget = math.inf

    def second_passed(self) -> None:
        """Allow one event if the budget is spent: the claimed events may never have called."""
        self._seconds += 1
        self._budget = max(1, self._budget) if self._seconds < SLOW_START_SECONDS else math.inf
