"""The result of one attempt: the outcome, and the failures to count. Pure."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import packages_distributions, version
from typing import Final, Self

from credhook.logs.places import authors_function
from credhook.store import GAVE_UP, State
from credhook.worker.attempt.retry import DataGone, Defer, GiveUp, Retry, error_text
from credhook.worker.handlers.handler import Handler
from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.queue.claim import Settlement
from credhook.worker.queue.failure import FETCH, WORKER, Failure, credhook_version

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

    @staticmethod
    def before(ended: Mapping[str, str]) -> "Outcome":
        """Return the outcome at the start of an attempt. `ended`: handler → status from earlier attempts."""
        outcome = Outcome()
        for name, status in ended.items():
            outcome = outcome.with_ended(name, status)
        return outcome

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
        if self.unhandled:
            # Not an attempt: during a deploy, old and new workers may pass the event to and fro.
            return Settlement(State.UNHANDLED, "NoHandler", spend=False, only=missing)
        if self.again is not None:
            return Settlement(State.WAITING, self.error, wait=self.again, spend=self.spent)
        if missing and not self.whole:
            return Settlement(State.UNHANDLED, "NoHandler", spend=False, only=missing)
        if self.gave_up:
            return Settlement(State.DATA_GONE if self.data_gone else State.DEAD, self.gave_up[0])
        return Settlement(State.DONE)


def handler_failure(handler: Handler, error: Exception, milliseconds: float | None = None) -> Failure | None:
    """Return the failure to count, or None if the handler only has to wait.

    The place is the author's innermost function, or the handler itself if no code of the author raised the error.
    """
    if isinstance(error, Defer | PlatformPaused):
        return None
    function = inspect.unwrap(handler.function)
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", handler.name)
    where, at = authors_function(error) or (f"{module} {name}", f"{handler.at} {name}")
    versions = ", ".join(filter(None, (distribution(module), credhook_version())))
    # The reason of a `GiveUp` may differ for each event, so it is not part of the cause.
    what = "GiveUp" if isinstance(error, GiveUp) else error_text(error)
    return Failure(handler.name, what, where, at, versions, milliseconds)


def fetch_failure(error: Exception) -> Failure | None:
    """Return the failure to count, or None if the platform was not asked."""
    if isinstance(error, Defer | PlatformPaused):
        return None
    return Failure(FETCH, error_text(error), version=credhook_version())


@cache
def distribution(module: str) -> str:
    """Return the installed distribution of a module with its version, or "" if the module is a loose file."""
    names = packages_distributions().get(module.partition(".")[0])
    return f"{names[0]} {version(names[0])}" if names else ""


def open_errors(
    before: Mapping[str, str], failures: Sequence[Failure], statuses: Mapping[str, str], *, fetched: bool
) -> dict[str, str]:
    """Return the causes of the event's open errors after an attempt: who failed → id of the cause.

    Args:
        before: the causes of its open errors before.
        failures: the failures of the attempt.
        statuses: handler → how it ended in the attempt.
        fetched: True if the attempt fetched the details.
    """
    resolved = {name for name, status in statuses.items() if not status.startswith(GAVE_UP)}
    if fetched:
        resolved.add(FETCH)
    if fetched or failures:
        resolved.add(WORKER)
    open_before = {who: cause_id for who, cause_id in before.items() if who not in resolved}
    return open_before | {failure.who: failure.cause for failure in failures}
