"""The decisions of one process's circuit breaker: call outcomes go in, and the next circuit comes out.

    closed ──▶ open         the platform asked for a pause, failures outweigh answers, or the fleet pauses
      ▲         │ ▲
      │         ▼ │         the pause is over; the probe failed
      └───── half open      one probe of this process; the platform answered it

A score weighs failures: a failure adds one, an answer takes one away, and at `THRESHOLD` the circuit opens (Page's
cumulative sum). Consecutive failures would be reset by the few answers of a failing platform. A ratio over a window
would dilute the first failures with earlier answers. The score opens after ten calls of an outage, and almost never
when fewer than a fifth of the calls fail.
"""

import math
import random
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, Self

from credhook.backoff import Backoff
from credhook.worker.api.errors import IN_ITS_PLACE, Unavailable

#: Failures minus answers at which the circuit opens.
THRESHOLD: Final = 10
#: Pauses that the platform did not ask for, in seconds. They double as probes fail.
PAUSES: Final = Backoff(first=1.0, longest=30.0, jitter=0.5)
#: Longest Retry-After that is honoured. Then each process asks again with one call: a mistaken hour must not stop the
#: fleet for an hour, and presented data may be readable for 15 minutes.
MAX_RETRY_AFTER_SECONDS: Final = 300.0
#: Added to a requested pause, so that no process calls a moment too early.
MARGIN_SECONDS: Final = 0.05
#: Slow start ends at this budget, which is more than one process works on.
SLOW_START_BUDGET: Final = 256
#: Seconds after which slow start ends in any case.
SLOW_START_SECONDS: Final = 30.0
#: Seconds after which a spent budget allows one more event: the claimed events may never call.
SLOW_START_REFILL_SECONDS: Final = 1.0

_TOO_MANY_REQUESTS, _SERVICE_UNAVAILABLE, _SERVER_ERROR = 429, 503, 500
_TRANSIENT: Final = {408, 425}


class PlatformPaused(Unavailable):
    """The circuit breaker or the rate limit refused the call, and it was not sent. `retry_after` is always set."""


class Phase(Enum):
    """Phase of a circuit."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class CallResult(Enum):
    """Result of one call, as far as it concerns the platform."""

    #: The platform works. 403 and 404 concern one resource, and 401 the credential of this process.
    ANSWERED = "answered"
    #: 5xx, 408 or 425, or something else has answered in the platform's place.
    FAILED = "failed"
    #: No answer. The cause may be the network of this process.
    UNANSWERED = "unanswered"
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
        cause: for logs: a status, or a word for the error.
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
    """Read a response's status and Retry-After. `cause`: what was wrong, if the status does not say it.

    Without a response, `status` is None.
    """
    chance = random.random()  # noqa: S311  Jitter, no secret.
    if status is None:
        return CallOutcome(CallResult.UNANSWERED, at, chance, None, probe, cause)
    if status == _TOO_MANY_REQUESTS or (status == _SERVICE_UNAVAILABLE and retry_after):
        return CallOutcome(CallResult.REFUSED, at, chance, retry_after, probe, str(status))
    if cause in IN_ITS_PLACE:
        return CallOutcome(CallResult.FAILED, at, chance, None, probe, cause)
    failed = status >= _SERVER_ERROR or status in _TRANSIENT
    return CallOutcome(CallResult.FAILED if failed else CallResult.ANSWERED, at, chance, None, probe, str(status))


@dataclass(frozen=True, slots=True)
class Circuit:
    """State of a process's circuit breaker.

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

    def paused(self, until: float) -> Self:
        """Return the circuit in a pause of the fleet."""
        return replace(self, is_open=True, score=0, until=max(self.until, until))

    def after(self, outcome: CallOutcome) -> Self:
        """Return the circuit after one call.

        While the circuit is open, other calls were sent before it opened. They only count if they ask for a pause.
        """
        if outcome.result is CallResult.ANSWERED and not self.is_open and not self.score:  # Nearly all.
            return self
        phase = self.phase(outcome.at)
        if outcome.retry_after:
            return self.paused(outcome.at + min(outcome.retry_after, MAX_RETRY_AFTER_SECONDS) + MARGIN_SECONDS)
        if phase is Phase.OPEN or (phase is Phase.HALF_OPEN and not outcome.probe):
            return self
        if outcome.result is CallResult.ANSWERED:
            return type(self)(score=max(0, self.score - 1))
        if outcome.result is CallResult.REFUSED or phase is Phase.HALF_OPEN or self.score + 1 >= THRESHOLD:
            pause = PAUSES.wait(self.trips + 1, outcome.chance)
            return type(self)(is_open=True, trips=self.trips + 1, until=outcome.at + pause)
        return replace(self, score=self.score + 1)


class SlowStart:
    """Budget of events that one process may claim after a pause: 1, 2, 4, …, doubling as their fetches succeed."""

    def __init__(self) -> None:
        self._budget = math.inf  # No limit.
        self._refill_at = self._ends_at = -math.inf

    def begin(self, now: float) -> None:
        """Start with a budget of one event."""
        self._budget = 1
        self._refill_at, self._ends_at = now + SLOW_START_REFILL_SECONDS, now + SLOW_START_SECONDS

    def allows(self, wanted: int, now: float) -> int:
        """Return how many of `wanted` events may be claimed."""
        if now >= self._ends_at:
            self._budget = math.inf
        elif now >= self._refill_at:
            self._budget, self._refill_at = max(1, self._budget), now + SLOW_START_REFILL_SECONDS
        return int(min(wanted, self._budget))

    def spend(self, count: int) -> None:
        """Take claimed events off the budget."""
        self._budget -= count

    def succeeded(self) -> None:
        """Let two more events follow each fetched event."""
        self._budget += 2
        if self._budget >= SLOW_START_BUDGET:
            self._budget = math.inf


class AnswerCount:
    """Counts the calls of one process that the platform answers within a second."""

    def __init__(self) -> None:
        self._second = self._this = self._last = 0

    def add(self, at: float) -> None:
        """Count an answer at this monotonic time."""
        self._turn(at)
        self._this += 1

    def per_second(self, at: float) -> int:
        """Return the answers in the second that has begun, or in the one before if there were more."""
        self._turn(at)
        return max(self._this, self._last)

    def _turn(self, at: float) -> None:
        if (second := int(at)) != self._second:
            self._last = self._this if second == self._second + 1 else 0
            self._second, self._this = second, 0
