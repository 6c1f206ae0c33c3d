"""The state of one attempt at an event: how it is interrupted, its outcome, and the failures to count."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from importlib.metadata import packages_distributions, version
from typing import Any, Final, Self

from credhook.logs.places import authors_function, leaves
from credhook.store import GAVE_UP, State
from credhook.worker.attempt.details import Fetched
from credhook.worker.attempt.retry import DataGone, Defer, GiveUp, Retry, error_class, error_text
from credhook.worker.handlers.registry import Handler, definition
from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.queue.claims import Claim, Settlement
from credhook.worker.queue.failure import FETCH, WORKER, Failure

#: Statuses of a handler. The third is `GAVE_UP` with the reason.
DONE: Final = "done"
SKIPPED: Final = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of the event after the handlers so far.

    Attributes:
        again: seconds until the next attempt, the shortest wait of all failures; None if nothing is retried.
        error: the cause of that failure.
        gave_up: handlers given up in this or an earlier attempt, with their reasons.
        data_gone: True if the presented data is gone.
        spent: True if a failure counts as an attempt. Waiting for a platform that is down does not.
        unhandled: True if this worker has no handler for the event.
        whole: True if the event is given up even though handlers of other workers have not run.
    """

    again: float | None = None
    error: str = ""
    gave_up: tuple[str, ...] = ()
    data_gone: bool = False
    spent: bool = False
    unhandled: bool = False
    whole: bool = False

    def with_ended(self, handler: str, status: str) -> Self:
        """Return the outcome with the recorded status of a handler."""
        if not status.startswith(GAVE_UP):
            return self
        return replace(self, gave_up=(*self.gave_up, f"{handler}: {status.removeprefix(GAVE_UP)}"))

    def after(self, handler: str, error: Exception, decision: Retry | GiveUp) -> Self:
        """Return the outcome after a failure. An empty handler name stands for the fetch."""
        named = f"{handler}: {error_text(error)}" if handler else error_text(error)
        if isinstance(decision, GiveUp):
            data_gone = self.data_gone or isinstance(error, DataGone)
            return replace(self, gave_up=(*self.gave_up, named), data_gone=data_gone, whole=self.whole or not handler)
        spent = self.spent or not isinstance(decision, Defer)
        wait = decision.after or 0.0
        if self.again is not None and self.again <= wait:
            return replace(self, spent=spent)
        return replace(self, spent=spent, again=wait, error=named)

    def settlement(self, missing: tuple[str, ...] = ()) -> Settlement:
        """Return the settlement. The event stays open for handlers that are `missing` on this worker."""
        if self.again is not None:
            return Settlement(State.WAITING, self.error, wait=self.again, spend=self.spent)
        if self.unhandled or (missing and not self.whole):
            # Not an attempt: during a deploy, old and new workers may pass the event to and fro.
            return Settlement(State.UNHANDLED, "NoHandler", spend=False, only=missing)
        if self.gave_up:
            return Settlement(State.DATA_GONE if self.data_gone else State.DEAD, self.gave_up[0])
        return Settlement(State.DONE)


def failure_of(error: Exception, handler: Handler | None = None, milliseconds: float | None = None) -> Failure | None:
    """Return the failure of a handler to count, or of the fetch. None: the event only has to wait.

    The place is the author's innermost function, or the handler itself if no code of the author raised the error.
    """
    if all(isinstance(one, Defer | PlatformPaused) for one in leaves(error)):
        return None
    if handler is None:
        return Failure(FETCH, error_text(error))
    function = definition(handler.function)
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", handler.name)
    where, at = authors_function(error) or (f"{module} {name}", f"{handler.at} {name}")
    # The reason of a `GiveUp` may differ for each event, so it is not part of the cause.
    return Failure(handler.name, error_class(error), where, at, distribution(module), milliseconds)


#: It reads the files of everything that is installed.
_distributions: Final = cache(packages_distributions)


@cache
def distribution(module: str) -> str:
    """Return the installed distribution of a module with its version, or "" if the module is a loose file."""
    names = _distributions().get(module.partition(".")[0])
    return f"{names[0]} {version(names[0])}" if names else ""


class Interruption(Enum):
    """Why an attempt was interrupted."""

    #: The process stalled for longer than its lease. Another worker may hold the event by now.
    LEASE_LOST = "lease_lost"
    #: The process is shutting down and hands unfinished events back.
    DRAINED = "drained"


@dataclass(slots=True, eq=False)
class Attempt:
    """One event in progress.

    Attributes:
        known: the details fetched for the previous event of the same resource.
        calls_platform: True once the attempt is going to fetch. Until then, its token may be given back.
        version: rank and time of the fetched state, see `details.version`.
        wanted: the handlers of this worker that the event is for.
        dispatched: the names of those that run in this attempt.
        missing: the handlers that the event waits for and that this worker does not have.
        statuses: handler → how it ended in this attempt.
        unwritten: those of `statuses` that the store does not know yet, with the milliseconds of the run.
        durations: handler → milliseconds, for the handlers that are done.
        counted: handlers whose failures were written with their status.
    """

    claim: Claim
    known: Fetched | None = None
    began: float = 0.0
    interruption: Interruption | None = None
    outcome: Outcome = Outcome()
    fetched: Fetched | None = None
    calls_platform: bool = False
    version: tuple[int, int] | None = None
    wanted: Sequence[Handler] = ()
    dispatched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    statuses: dict[str, str] = field(default_factory=dict)
    unwritten: dict[str, str] = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    counted: set[str] = field(default_factory=set)
    _task: "asyncio.Task[object] | None" = None
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

    @property
    def open_errors(self) -> dict[str, str]:
        """Return the causes of the event's open errors after this attempt: who failed → id of the cause."""
        resolved = {name for name, status in self.statuses.items() if not status.startswith(GAVE_UP)}
        if self.fetched:
            resolved.add(FETCH)
        if self.fetched or self.failures:
            resolved.add(WORKER)
        still_open = {who: cause for who, cause in self.claim.causes.items() if who not in resolved}
        return still_open | {failure.who: failure.cause for failure in self.failures}

    def begin(self) -> None:
        """Make the current task the one that `interrupt` cancels, unless that was called already: see `check`."""
        self.check()
        self._task = asyncio.current_task()

    def check(self) -> None:
        """Raise `CancelledError` if the attempt was interrupted: awaited code may have swallowed the cancellation."""
        if self.interruption is not None:
            raise asyncio.CancelledError

    def interrupt(self, why: Interruption) -> None:
        """Cancel the attempt's task, unless the attempt is over."""
        if self.interruption is None and not self._over:
            self.interruption = why
            if self._task is not None:
                self._task.cancel()

    def end(self) -> None:
        """Stop interruptions: the result is written next."""
        self._over = True
        if self.interruption is not None and self._task is not None:
            self._task.uncancel()
