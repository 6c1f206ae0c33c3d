"""How calls pass the fleet's circuit breaker, and tell it what they came to."""

from http import HTTPStatus
from typing import Final, Protocol

from credhook.worker.api.guard import Permit
from credhook.worker.platform.breaker import Outcome, outcome_of

_OK: Final = HTTPStatus.OK.value


class Breaker(Protocol):
    """What decides about calls, and is told."""

    def clock(self) -> float:
        """The time, in the seconds that it decides by."""

    async def acquire(self, operation: str, *, prepaid: bool) -> Permit:
        """Wait until the call may be sent."""

    def record(self, outcome: Outcome | None, *, probe: bool, trial: bool, prepaid: bool) -> None:
        """Take in what a call came to; None says nothing of the platform."""

    def takes_success(self, *, prepaid: bool) -> bool:
        """Take in the success of a call that was no probe; False if it is to be recorded, since there is more to it."""

    def doubt(self) -> None:
        """A token was refused: find out about the next one by one call."""


class BreakerGuard:
    """One of the breaker's two guards."""

    def __init__(self, breaker: Breaker, *, prepaid: bool) -> None:
        self._breaker = breaker
        self._prepaid = prepaid

    async def acquire(self, operation: str) -> Permit:
        """See `Guard`."""
        return await self._breaker.acquire(operation, prepaid=self._prepaid)


class BreakerPermit:
    """Leave to make one call; the first word about it counts."""

    __slots__ = ("_breaker", "_is_over", "_prepaid", "_probe", "_trial")

    def __init__(self, breaker: Breaker, *, prepaid: bool, probe: bool = False, trial: bool = False) -> None:
        self._breaker = breaker
        self._prepaid = prepaid
        self._probe = probe
        self._trial = trial
        self._is_over = False

    def answered(self, status: int, retry_after: float | None) -> None:
        """The platform answered."""
        if status == _OK and not self._probe and not self._is_over:
            self._is_over = self._breaker.takes_success(prepaid=self._prepaid)
        if not self._is_over:
            self._end(outcome_of(status, retry_after, at=self._breaker.clock(), probe=self._probe))

    def outdated(self) -> bool:
        """It refused the token, and a fresh one follows."""
        self._breaker.doubt()
        if self._probe or self._trial:
            return True  # The others wait for what the fresh token comes to.
        self._end(None)
        return False

    def unanswered(self, cause: str) -> None:
        """It did not answer."""
        self._end(outcome_of(None, None, at=self._breaker.clock(), probe=self._probe, cause=cause))

    def cancelled(self) -> None:
        """Nobody knows whether it would have."""
        self._end(None)

    def _end(self, outcome: Outcome | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._breaker.record(outcome, probe=self._probe, trial=self._trial, prepaid=self._prepaid)
