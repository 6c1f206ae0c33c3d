"""The circuit breaker of a fleet of one, on a clock that the test moves."""

from collections.abc import Callable
from dataclasses import replace

from credhook.worker.api.guard import Permit
from credhook.worker.platform.circuit import Circuit, Phase, PlatformPaused, outcome_of


class ClockedBreaker:
    """Stands before a handler's calls, and leaves the platform alone when a worker would."""

    def __init__(self, now: Callable[[], float], chance: Callable[[], float]) -> None:
        """`now` is in seconds; `chance` is a number from 0 to 1, drawn anew for each call."""
        self._now = now
        self._chance = chance
        self._circuit = Circuit()

    async def acquire(self, operation: str) -> Permit:
        """See `Guard`."""
        phase = self._circuit.phase(self._now())
        if phase is Phase.OPEN:
            message = f"{operation}: not sent: the platform is left alone"
            raise PlatformPaused(message, operation=operation, retry_after=self.pause())
        return _Permit(self, probe=phase is Phase.HALF_OPEN)

    def pause(self) -> float:
        """Seconds for which no call is made from now on; 0 when calls are."""
        return max(0.0, self._circuit.until - self._now()) if self._circuit.is_open else 0.0

    def record(self, status: int | None, retry_after: float | None, *, probe: bool) -> None:
        """Take in what a call came to."""
        outcome = outcome_of(status, retry_after, at=self._now(), probe=probe)
        self._circuit = self._circuit.after(replace(outcome, chance=self._chance()))


class _Permit:
    """Leave to make one call; the first word about it counts."""

    def __init__(self, breaker: ClockedBreaker, *, probe: bool) -> None:
        self._breaker = breaker
        self._probe = probe

    def answered(self, status: int, retry_after: float | None) -> None:
        """The platform answered."""
        self._breaker.record(status, retry_after, probe=self._probe)

    def unanswered(self, cause: str) -> None:  # noqa: ARG002  The protocol's.
        """It did not answer."""
        self._breaker.record(None, None, probe=self._probe)

    def cancelled(self) -> None:
        """That says nothing of the platform."""
