"""One attempt at an event: what is known of it while it is under way, and how it is broken off."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from credhook.worker.attempt.details import Fetched
from credhook.worker.attempt.outcome import NOTHING_YET, Outcome
from credhook.worker.queue.claim import Claim
from credhook.worker.queue.failure import Failure


class Interruption(Enum):
    """Why an attempt was broken off."""

    #: The process stalled for longer than its lease; another worker may have the event by now.
    LEASE_LOST = "lease_lost"
    #: An operator stopped the job.
    STOPPED = "stopped"
    #: The process ends, and hands back what it has not finished.
    DRAINED = "drained"


@dataclass(slots=True, eq=False)
class Attempt:
    """One event under way, and what has come of it so far."""

    claim: Claim
    #: What is known of its resource from the event before.
    known: Fetched | None = None
    #: When it began, by the clock of whoever makes it.
    began: float = 0.0
    #: Whether its fetch was counted when it was taken.
    admitted: bool = False
    interruption: Interruption | None = None
    outcome: Outcome = NOTHING_YET
    fetched: Fetched | None = None
    #: Which state of the resource that was, as `staleness.version` has it.
    version: tuple[int, int] | None = None
    #: How handlers have ended, where the ledger does not know it yet.
    records: dict[str, str] = field(default_factory=dict)
    #: How they have ended in this attempt, whether or not the ledger knows.
    ends: dict[str, str] = field(default_factory=dict)
    #: What has failed in this attempt, and whose failures have been handed over to be counted.
    failures: list[Failure] = field(default_factory=list)
    counted: set[str] = field(default_factory=set)
    #: The handlers that were dispatched, and those that the event waits for and that nobody has here.
    dispatched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    #: Whether the platform was to be asked: until then, what was admitted for that can be given back.
    asks: bool = False
    #: The handlers that have done their part in this attempt, and the milliseconds that they took.
    ran: dict[str, float] = field(default_factory=dict)
    _task: "asyncio.Task[object] | None" = None
    #: How often the task had been asked to cancel when it began.
    _cancelling: int = 0
    #: Whether the interruption was one more such request.
    _cancelled: bool = False
    _over: bool = False

    @property
    def ids(self) -> dict[str, Any]:
        """What lines of the log say of it."""
        claim = self.claim
        return {
            "webhook_id": claim.event_id,
            "event_type": claim.type,
            "resource_id": claim.resource_id,
            "attempt": claim.attempt,
        }

    @property
    def pending(self) -> tuple[str, ...]:
        """The handlers that the event still waits for, here or elsewhere."""
        if not (self.claim.pending or self.missing) and self.ends.keys() >= set(self.dispatched):
            return ()  # As nearly always.
        waited_for = self.claim.pending.union(self.missing, self.dispatched)
        return tuple(sorted(waited_for - self.claim.ended.keys() - self.ends.keys()))

    def note(self, failure: Failure | None) -> str | None:
        """Have it counted, if it is one; the id of its cause, for the log."""
        if failure is None:
            return None
        self.failures.append(failure)
        return failure.cause

    def uncounted(self) -> dict[str, Failure]:
        """Who has failed, where nobody has been told yet."""
        return {failure.who: failure for failure in self.failures if failure.who not in self.counted}

    def begin(self) -> None:
        """The current task works on it from now on.

        Raises:
            asyncio.CancelledError: it was broken off before.
        """
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task else 0
        self.go_on()

    def go_on(self) -> None:
        """Return, unless it is over: asked before each step, since whatever was awaited may swallow a cancellation.

        Raises:
            asyncio.CancelledError: it was broken off, or its task cancelled.
        """
        if self.interruption is not None or (self._task and self._task.cancelling() > self._cancelling):
            raise asyncio.CancelledError

    def interrupt(self, why: Interruption) -> None:
        """Break it off."""
        if self.interruption is None and not self._over:
            self.interruption = why
            if self._task is not None:
                self._cancelled = self._task.cancel()

    def end(self) -> bool:
        """It can be broken off no longer: what follows is writing down, unless its task was cancelled for itself.

        Returns:
            Whether there is something to write down.
        """
        self._over = True
        if self._task is None:
            return False
        if self._cancelled:
            self._task.uncancel()
        return self._task.cancelling() <= self._cancelling
