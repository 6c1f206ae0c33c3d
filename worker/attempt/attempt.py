"""The state of one attempt at an event, and how the attempt is interrupted."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from credhook.worker.attempt.details import Fetched
from credhook.worker.attempt.outcome import Outcome
from credhook.worker.queue.claim import Claim
from credhook.worker.queue.failure import Failure


class Interruption(Enum):
    """Why an attempt was interrupted."""

    #: The process stalled for longer than its lease. Another worker may hold the event by now.
    LEASE_LOST = "lease_lost"
    #: An operator stopped the job.
    STOPPED = "stopped"
    #: The process is shutting down and hands unfinished events back.
    DRAINED = "drained"


@dataclass(slots=True, eq=False)
class Attempt:
    """One event in progress.

    Attributes:
        claim: the event and the right to work on it.
        known: the details fetched for the previous event of the same resource.
        admitted: True if the rate limit has already counted the fetch.
        calls_platform: True once the attempt is going to fetch. Until then, an admitted call can be given back.
        version: rank and time of the fetched state, see `details.version`.
        dispatched: the handlers that run in this attempt.
        missing: the handlers that the event waits for and that this worker does not have.
        statuses: handler → how it ended in this attempt.
        unwritten: those of `statuses` that the store does not know yet, with the milliseconds of the run.
        durations: handler → milliseconds, for the handlers that are done.
        failures: all failures of this attempt.
        counted: handlers whose failures were written with their status.
    """

    claim: Claim
    known: Fetched | None = None
    admitted: bool = False
    began: float = 0.0
    interruption: Interruption | None = None
    outcome: Outcome = field(default_factory=Outcome)
    fetched: Fetched | None = None
    calls_platform: bool = False
    version: tuple[int, int] | None = None
    dispatched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    statuses: dict[str, str] = field(default_factory=dict)
    unwritten: dict[str, str] = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    counted: set[str] = field(default_factory=set)
    _task: "asyncio.Task[object] | None" = None
    #: Cancellation requests of the task when the attempt began.
    _cancelling: int = 0
    #: True if the interruption added such a request.
    _cancelled: bool = False
    _over: bool = False

    @property
    def ids(self) -> dict[str, Any]:
        """Return the fields that identify the attempt in log lines."""
        claim = self.claim
        return {
            "webhook_id": claim.event_id,
            "event_type": claim.type,
            "resource_id": claim.resource_id,
            "attempt": claim.attempt,
        }

    @property
    def pending(self) -> tuple[str, ...]:
        """Return the handlers that the event still waits for, on this worker or another one."""
        waited_for = self.claim.pending.union(self.missing, self.dispatched)
        return tuple(sorted(waited_for - self.claim.ended.keys() - self.statuses.keys()))

    def add_failure(self, failure: Failure | None) -> str | None:
        """Record the failure, if any, and return the id of its cause."""
        if failure is None:
            return None
        self.failures.append(failure)
        return failure.cause

    @property
    def uncounted(self) -> dict[str, Failure]:
        """Return the failures that are not written yet, by who failed."""
        return {failure.who: failure for failure in self.failures if failure.who not in self.counted}

    def begin(self) -> None:
        """Make the current task the one that `interrupt` cancels.

        Raises:
            asyncio.CancelledError: the attempt was interrupted before it began.
        """
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task else 0
        self.check()

    def check(self) -> None:
        """Return unless the attempt is over. Called before each step, because awaited code may swallow a cancellation.

        Raises:
            asyncio.CancelledError: the attempt was interrupted, or its task cancelled.
        """
        if self.interruption is not None or (self._task and self._task.cancelling() > self._cancelling):
            raise asyncio.CancelledError

    def interrupt(self, why: Interruption) -> None:
        """Cancel the attempt's task, unless the attempt is over."""
        if self.interruption is None and not self._over:
            self.interruption = why
            if self._task is not None:
                self._cancelled = self._task.cancel()

    def end(self) -> bool:
        """Stop interruptions: the result is written next.

        Returns:
            False if the task itself was cancelled, so that nothing must be written.
        """
        self._over = True
        if self._task is None:
            return False
        if self._cancelled:
            self._task.uncancel()
        return self._task.cancelling() <= self._cancelling
