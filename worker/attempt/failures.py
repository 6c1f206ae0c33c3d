"""What went wrong in an attempt, as it is counted and told."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from credhook.logs.places import authors_function
from credhook.store import GAVE_UP, State
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.attempt.outcome import SKIPPED
from credhook.worker.attempt.retry import Defer, GiveUp, cause
from credhook.worker.handlers.distribution import distribution
from credhook.worker.handlers.handler import Handler
from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.queue.claim import Settlement
from credhook.worker.queue.failure import FETCH, WORKER, Failure, credhook_version


def of_handler(handler: Handler, error: Exception, milliseconds: float | None = None) -> Failure | None:
    """How a handler has failed; None if it was not to blame: it could not run yet, or the platform is known to be away.

    Where its author's code was not on the way, as for one that was too slow, the place is that of the handler itself.
    """
    if isinstance(error, Defer | PlatformPaused):
        return None
    function = inspect.unwrap(handler.function)
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", handler.name)
    where, at = authors_function(error) or (f"{module} {name}", f"{handler.at} {name}")
    versions = ", ".join(filter(None, (distribution(module), credhook_version())))
    return Failure(handler.name, _what(error), where, at, versions, milliseconds)


def of_fetch(error: Exception) -> Failure | None:
    """How a fetch has failed; None if nothing was asked: the platform is known to be away."""
    if isinstance(error, Defer | PlatformPaused):
        return None
    return Failure(FETCH, _what(error), version=credhook_version())


def stopped() -> Failure:
    """That an operator has stopped the attempt."""
    return Failure(WORKER, "Stopped", version=credhook_version())


def _what(error: Exception) -> str:
    # The reason is the author's words about one event: it may be another each time.
    return "GiveUp" if isinstance(error, GiveUp) else cause(error)


def stands_with(
    before: Mapping[str, str], failures: Sequence[Failure], ends: Mapping[str, str], *, fetched: bool
) -> dict[str, str]:
    """The causes that an event stands with after an attempt that `fetched` the details: who has failed → the id. Pure.

    `before`: those that it stood with; `ends`: how handlers have ended in the attempt.
    """
    after = {who: one for who, one in before.items() if who not in _over(failures, ends, fetched=fetched)}
    return after | {failure.who: failure.cause for failure in failures}


def _over(failures: Sequence[Failure], ends: Mapping[str, str], *, fetched: bool) -> Collection[str]:
    """Who has failed earlier and no longer does. An attempt that says something has outlived its worker."""
    over = {name for name, how in ends.items() if not how.startswith(GAVE_UP)}
    if fetched:
        over.add(FETCH)
    if fetched or failures:
        over.add(WORKER)
    return over


def story(attempt: Attempt, settlement: Settlement) -> dict[str, Any] | None:
    """What of the attempt is told in the event's story, but for the worker and the time; None if it is not worth it.

    It is not if the event was done at once, or if it was put off and nothing has failed: it may be so every second.
    """
    claim, state = attempt.claim, settlement.state
    if (claim.first and state is State.DONE) or (state is State.WAITING and not attempt.failures):
        return None
    told: dict[str, Any] = {
        "attempt": claim.attempt,
        "began": claim.now,
        "state": state.value,
        "error": settlement.error,
        "wait": int(settlement.wait * 1_000),
        "ran": attempt.ran,
        "skipped": [name for name, how in attempt.ends.items() if how == SKIPPED],
        "failures": [failure.told() for failure in attempt.failures],
    }
    return {name: value for name, value in told.items() if value}
