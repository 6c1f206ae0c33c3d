"""The state of one attempt at an event: its interruption, the end of each handler, and the settlement."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.metadata import packages_distributions, version
from typing import Any, Final, NamedTuple

from credhook.events import event_ids
from credhook.logs.places import authors_function, leaves
from credhook.store import FETCH, GAVE_UP, WORKER, State
from credhook.worker.attempt.details import Fetched
from credhook.worker.attempt.retry import DataGone, Defer, GiveUp, Retry, error_class, error_text
from credhook.worker.attempt.running import LOOK_AGAIN_SECONDS
from credhook.worker.handlers.arguments import FailedRun
from credhook.worker.handlers.functions import definition
from credhook.worker.handlers.registry import Handler
from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.queue.claims import Claim, Settlement
from credhook.worker.queue.failure import Failure

#: Statuses of a handler. The third is `GAVE_UP` with the reason.
DONE: Final = "done"
SKIPPED: Final = "skipped"


class Wait(NamedTuple):
    """What a handler, or the fetch, waits for after a failure.

    Attributes:
        seconds: until the next attempt.
        spent: True if the failure counts as an attempt. Waiting for a platform that is down does not.
        error: the failure, with the handler's name.
        chosen: True if the handler has chosen the time by `Retry(after=…)`.
    """

    seconds: float
    spent: bool
    error: str
    chosen: bool = False


def failure_of(error: Exception, handler: Handler | None = None, milliseconds: float | None = None) -> Failure | None:
    """Return the failure of a handler, or of the fetch. None: the event only has to wait.

    The place is the author's innermost function, or the handler itself if no code of the author raised the error.
    """
    if all(isinstance(leaf, Defer | PlatformPaused) for leaf in leaves(error)):
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
        dispatched: the names of the handlers that run in this attempt.
        missing: the handlers that the event waits for and that this worker does not have.
        statuses: handler → how it ended in this attempt.
        unwritten: those of `statuses` that the store does not know yet, with the milliseconds of the run.
        durations: handler → milliseconds, for the handlers that are done.
        waits: handler, or `FETCH` → its wait, if it has failed and is tried again.
        given_up: why the whole event is given up, for reasons beside its handlers; or None.
        data_gone: True if the presented data is gone.
        failures: the failures of this attempt.
        retries: handler → its `Retry`, as the history shows it. A `Retry` is no failure.
        hook_calls: the functions of `on_error` and `on_give_up` to call once the event is settled, each with its
            first argument.
    """

    claim: Claim
    known: Fetched | None = None
    began: float = 0.0
    interruption: Interruption | None = None
    fetched: Fetched | None = None
    calls_platform: bool = False
    version: tuple[int, int] | None = None
    wanted: Sequence[Handler] = ()
    dispatched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    statuses: dict[str, str] = field(default_factory=dict)
    unwritten: dict[str, str] = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)
    waits: dict[str, Wait] = field(default_factory=dict)
    given_up: Exception | None = None
    data_gone: bool = False
    failures: list[Failure] = field(default_factory=list)
    retries: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    hook_calls: list[tuple[FailedRun, Handler]] = field(default_factory=list)
    _task: "asyncio.Task[object] | None" = None
    _over: bool = False

    @property
    def ids(self) -> dict[str, Any]:
        """Return the fields that identify the event in log lines."""
        return event_ids(self.claim.event_id, self.claim.type, self.claim.resource_id)

    @property
    def unfinished(self) -> list[str]:
        """Return the handlers of this worker that have not ended."""
        ended = self.claim.ended.keys() | self.statuses.keys()
        return [handler.name for handler in self.wanted if handler.name not in ended]

    @property
    def pending(self) -> tuple[str, ...]:
        """Return the handlers that the event still waits for, on this worker or another one."""
        waited_for = self.claim.pending.union(self.missing, self.dispatched)
        return tuple(sorted(waited_for - self.claim.ended.keys() - self.statuses.keys()))

    def run_number(self, name: str) -> int:
        """Return `event.attempt` of the handler's next run. A run that a crash has cut short counts, at no cost."""
        return self.claim.attempt(name) + self.claim.lapses

    def failed(self, name: str, error: Exception, decision: Retry | GiveUp) -> None:
        """Take in what the retry policy says of a failure. `name`: a handler, or `FETCH`."""
        if isinstance(decision, GiveUp):
            self.data_gone = self.data_gone or isinstance(error, DataGone)
            if name == FETCH:
                self.given_up = error
            return
        text = error_text(error) if name == FETCH else f"{name}: {error_text(error)}"
        spent = not isinstance(decision, Defer)
        self.waits[name] = Wait(decision.after or 0.0, spent, text, spent and decision in leaves(error))

    @property
    def schedules(self) -> dict[str, tuple[int, float | None, bool]]:
        """Return what the record should say of attempts and due times: handler, or `FETCH` → see `Settlement`.

        A handler that is done at its first attempt has no schedule. A handler that has not run keeps its schedule.
        """
        claim = self.claim
        schedules: dict[str, tuple[int, float | None, bool]] = {
            name: (claim.attempt(name), None, False) for name in self.statuses if claim.attempt(name) > 1
        }
        for name in self.pending:
            if name not in claim.schedules:
                schedules[name] = 0, None, False
        for name, wait in self.waits.items():
            schedules[name] = claim.attempt(name) - (not wait.spent), wait.seconds, wait.chosen
        if self.given_up and self.calls_platform:
            schedules[FETCH] = claim.attempt(FETCH), None, False
        return schedules

    def settlement(self) -> Settlement:
        """Return what to write down about this attempt."""
        claim, outcome = self.claim, self._outcome()
        is_done = outcome.state is State.DONE
        sealed = claim.seen or (self.fetched is not None and self.fetched.has_data)
        if is_done and claim.first:  # Nearly all events. They have no history.
            return Settlement(State.DONE, records=self.unwritten, sealed=sealed, latest=self.version)
        return outcome._replace(
            records=self.unwritten,
            schedules=self.schedules,
            fetched=self.fetched is not None and FETCH in claim.schedules,
            sealed=sealed,
            latest=self.version if is_done or self.durations else None,
            failures=tuple(self.failures),
            causes={} if is_done else self.open_errors,
            history=self._history_entry(outcome),
        )

    def _outcome(self) -> Settlement:
        """Return the event's state after this attempt, with the wait if it is tried again."""
        if self.interruption is not None:  # If the lease is lost, the claim may still stand: Redis was away.
            return Settlement(State.ACCEPTED)
        given_up = "" if self.given_up is None else error_text(self.given_up)
        if not given_up:
            if unfinished := self.unfinished:
                return self._waiting(unfinished)
            if self.missing or not self.wanted:
                return Settlement(State.UNHANDLED, "NoHandler")
            ended = {**self.claim.ended, **self.statuses}
            reasons = (f"{name}: {how.removeprefix(GAVE_UP)}" for name, how in ended.items() if how.startswith(GAVE_UP))
            given_up = next(reasons, "")
        if given_up:
            return Settlement(State.DATA_GONE if self.data_gone else State.DEAD, given_up)
        return Settlement(State.DONE)

    def _waiting(self, unfinished: Sequence[str]) -> Settlement:
        """Return the settlement of an event that is due when the earliest of these handlers is, or the fetch."""
        claim, names = self.claim, unfinished
        if FETCH in self.waits or not claim.is_due(FETCH):
            names = [FETCH]
        now = claim.now + (time.monotonic() - self.began) * 1_000
        wait = min((self.waits[name] for name in names if name in self.waits), default=None)
        dues = [
            (claim.schedules[name].due, claim.schedules[name].chosen)
            for name in names
            if name not in self.waits and not claim.is_due(name)
        ]
        until, chosen = min(dues, default=(0, False))
        if wait is not None and (not dues or now + wait.seconds * 1_000 <= until):
            return Settlement(State.WAITING, wait.error, wait=wait.seconds, chosen=wait.chosen)
        if dues:
            return Settlement(State.WAITING, wait=max(0.0, (until - now) / 1_000), until=until, chosen=chosen)
        return Settlement(State.WAITING, wait=LOOK_AGAIN_SECONDS)

    def add_failure(self, failure: Failure | None) -> str | None:
        """Record the failure, if any, and return the id of its cause."""
        if failure is None:
            return None
        self.failures.append(failure)
        return failure.cause

    @property
    def open_errors(self) -> dict[str, str]:
        """Return the causes of the event's open errors after this attempt: who failed → id of the cause.

        A handler that has chosen to run again has no open error any more.
        """
        resolved = {name for name, status in self.statuses.items() if not status.startswith(GAVE_UP)}
        resolved |= self.retries.keys()
        if self.fetched:
            resolved.add(FETCH)
        if self.fetched or self.failures:
            resolved.add(WORKER)
        still_open = {who: cause for who, cause in self.claim.causes.items() if who not in resolved}
        return still_open | {failure.who: failure.cause for failure in self.failures}

    def _history_entry(self, outcome: Settlement) -> dict[str, Any] | None:
        """Return the attempt's entry in the event's history, or None if it says nothing.

        An event that is done at once has no entry. Neither has an event that was only deferred: that may happen every
        second.
        """
        claim, state = self.claim, outcome.state
        if (claim.first and state is State.DONE) or (state is State.WAITING and not (self.failures or self.retries)):
            return None
        entry: dict[str, Any] = {
            "began": claim.now,
            "state": state.value,
            "error": outcome.error,
            "wait": int(outcome.wait * 1_000),
            "ran": self.durations,
            "skipped": [name for name, status in self.statuses.items() if status == SKIPPED],
            "failures": [self._scheduled(failure.history()) for failure in self.failures],
            "retries": [self._scheduled(entry) for entry in self.retries.values()],
        }
        return {name: value for name, value in entry.items() if value}

    def _scheduled(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return a failure or a retry for the history, with the number of the attempt and the ms until the next one."""
        name, more = entry["who"], dict[str, int]()
        if name != WORKER:
            more["attempt"] = self.claim.attempt(name)
        if wait := self.waits.get(name):
            more["wait"] = int(wait.seconds * 1_000)
        return {**entry, **more}

    def begin(self) -> None:
        """Let `interrupt` cancel the current task. If it was called already, do what `check` does."""
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
