"""The retry policy: decide about a failure with `Retry`, `Defer` or `GiveUp`.

A handler may raise `Retry` or `GiveUp` itself; that is then the decision.
"""

import random
import re
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

from credhook.backoff import Backoff
from credhook.logs.places import leaves, note_decision
from credhook.store import LONGEST_WAIT
from credhook.worker.api.errors import (
    IN_ITS_PLACE,
    UNSENDABLE,
    ApiError,
    InvalidRequest,
    InvalidResponse,
    NotFound,
    Unauthorized,
    Unavailable,
)
from credhook.worker.platform.circuit import PlatformPaused

#: Ages of an event, in seconds, at which to look again for a resource that was not found: details can lag behind their
#: event. Sibling platforms suggest pauses of 1 s, 5 s, 30 s and 2 min. These are ages, so that other failures do not
#: use them up.
NOT_FOUND_AGES: Final = (1.0, 6.0, 36.0, 156.0)
#: Statuses of a GET that repeating does not change. None: the request cannot be sent. Others, such as 409, 423 and 451,
#: may pass.
_FINAL_STATUSES: Final = frozenset({None, 400, 405, 414, 422})
#: Seconds until the only second look for an event that was older than that at its first attempt.
NOT_FOUND_LATE_SECONDS: Final = 5.0

#: Waits between attempts, with full jitter. The default of twelve attempts ends after 16.6 hours at most.
BACKOFF: Final = Backoff(first=5.0, longest=4 * 3_600.0, growth=3.0, jitter=1.0)

#: Seconds for which an event waits for a platform that is down without spending attempts. After that its own resource
#: may be what brings the platform down.
FREE_WAIT_SECONDS: Final = 86_400.0

#: Seconds until an event tries again whose request could not be sent: a setting is wrong, and no attempt is spent.
UNSENDABLE_SECONDS: Final = 30.0
#: Least seconds until an event asks again for a handler whose concurrency limit is reached.
PLACE_AGAIN_SECONDS: Final = 0.5
#: Least seconds until an event asks again for a handler whose plugin has not started.
START_AGAIN_SECONDS: Final = 5.0
#: Seconds between two events of a process that ask for the same handler. Of a backlog, all would ask each second.
PLACE_TURN_SECONDS: Final = 0.005
#: Most seconds by which turns put an event's question off. The events before it may be gone by then.
LAST_TURN_SECONDS: Final = 600.0


class Retry(Exception):
    """Raised by a handler to run again for the event. This is a decision, not a failure. It counts as an attempt."""

    def __init__(self, after: float | timedelta | None = None, reason: str = "") -> None:
        """Choose when the handler runs again.

        Args:
            after: seconds until the next attempt, at most a week; None leaves the wait to the policy.
            reason: a few words for the operator, stored and logged: name the rule, not the person.

        Raises:
            ValueError: `after` is negative, not a number, or longer than a week.
        """
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if seconds is not None and not (isinstance(seconds, int | float) and 0 <= seconds <= LONGEST_WAIT):
            raise ValueError("Retry(after=…) should be a number of seconds from 0 to 604,800, or a timedelta")
        super().__init__(seconds)
        self.after = seconds
        self.reason = _storable(reason)
        note_decision(self)


class GiveUp(Exception):
    """Raised by a handler to never run again for this event. The event is kept as dead, with the reason.

    The reason is stored and logged: name the rule, not the person.
    """

    def __init__(self, reason: str = "") -> None:
        """`reason`: a few words for the operator."""
        self.reason = _storable(reason)
        super().__init__(self.reason)
        note_decision(self)


def _storable(reason: object) -> str:
    """Return a reason's first words. Of anything but a str only the class is kept: it may hold claims."""
    words = reason if isinstance(reason, str) else type(reason).__name__
    return words[:200].encode("utf-8", "replace").decode()


class DataGone(Exception):
    """The presented data can no longer be read: an earlier attempt has seen it, or the platform answers 410.

    Attributes:
        was_seen: True if an earlier attempt has seen the data.
    """

    def __init__(self, *, was_seen: bool) -> None:
        super().__init__("the presented data can no longer be read")
        self.was_seen = was_seen


class WorkerDied(Exception):
    """The event was given up because worker processes died with it, or because too many claims of it lapsed."""


class DetailsLate(Exception):
    """The details are empty, or lack the data that the event announces. They may lag behind the event.

    Attributes:
        fetched: what the platform returned. Handlers get it once it has not changed for long enough.
    """

    def __init__(self, fetched: Any) -> None:
        super().__init__("the details lack what the event announces")
        self.fetched = fetched


class Defer(Retry):
    """Try again once the obstacle is gone, usually a platform that is down. No attempt is spent."""


class ConcurrencyReached(Defer):
    """The handler's concurrency limit is reached. No attempt is spent."""

    def __init__(self, seconds: float = PLACE_AGAIN_SECONDS) -> None:
        super().__init__(seconds)


class RateReached(Defer):
    """The handler's rate is used up for now. No attempt is spent."""


class PluginNotStarted(Defer):
    """The start-up function of the handler's plugin has not succeeded yet. No attempt is spent."""


def after_fetch(
    error: Exception,
    attempt: int,
    *,
    age: float,
    max_attempts: int,
    pause: float = 0.0,
    chance: Callable[[], float] = random.random,
) -> Retry | GiveUp:
    """Decide about a failed fetch: `Retry` with its seconds set, or `GiveUp`.

    Attempts count from 1. `age`: seconds since the event was accepted. `pause`: seconds for which the circuit breaker
    lets no call through. `chance`: a random number from 0 to 1, so that events do not return together.
    """
    if (wait := _platform_wait(error, pause, age)) > 0:
        return Defer(wait + chance() * max(1.0, wait))
    is_final = isinstance(error, InvalidRequest) and error.status in _FINAL_STATUSES
    is_lost = isinstance(error, DataGone) and error.was_seen
    if is_final or is_lost or attempt >= max_attempts:
        return GiveUp(error_text(error))
    if isinstance(error, InvalidRequest | NotFound | DataGone | DetailsLate):
        age = age or _age_at(attempt)
        for moment in NOT_FOUND_AGES:
            if moment > age:
                return Retry(moment - age)
        return Retry(NOT_FOUND_LATE_SECONDS) if attempt == 1 else GiveUp(error_text(error))
    wait = BACKOFF.wait(attempt, chance())
    if isinstance(error, Unavailable) and error.retry_after is not None:
        wait = max(wait, min(error.retry_after, BACKOFF.longest))
    return Retry(wait)


def _age_at(attempt: int) -> float:
    """Return the age in seconds that an event has at this attempt if nothing but the details was missing.

    If Redis's clock was set back, the event has no age. It would spend its attempts within seconds.
    """
    return NOT_FOUND_AGES[min(attempt, len(NOT_FOUND_AGES)) - 2] if attempt > 1 else 0.0


def after_handler(
    error: Exception,
    attempt: int,
    *,
    max_attempts: int,
    age: float = 0.0,
    pause: float = 0.0,
    backoff: Backoff = BACKOFF,
    give_up_on: type[Exception] | tuple[type[Exception], ...] = (),
    chance: Callable[[], float] = random.random,
) -> Retry | GiveUp:
    """Decide about a failed handler, as in `after_fetch`. `backoff` and `give_up_on` are options of the handler."""
    error = decisive(error, give_up_on)
    if isinstance(error, GiveUp | Defer):
        return error
    waits = [_platform_wait(leaf, pause, age) for leaf in leaves(error)]
    if min(waits) > 0:
        return Defer(max(waits) + chance() * max(1.0, *waits))
    if _is_final(error, give_up_on) or attempt >= max_attempts:
        return GiveUp(error_text(error))
    if isinstance(error, Retry) and error.after is not None:
        return error
    return Retry(min(backoff.wait(attempt, chance()), LONGEST_WAIT))


def decisive(error: Exception, give_up_on: type[Exception] | tuple[type[Exception], ...] = ()) -> Exception:
    """Return the member of an exception group that decides as if it were raised alone, or the error itself.

    The longest `Retry` decides. The next attempt can still give up, so no other member is ignored. Without one, the
    first `GiveUp` or error of `give_up_on` decides. The other members decide together, as one error.
    """
    members = [leaf for leaf in leaves(error) if isinstance(leaf, Exception)]
    if retries := [member for member in members if isinstance(member, Retry)]:
        return max(retries, key=lambda retry: retry.after or 0.0)
    return next((leaf for leaf in members if isinstance(leaf, GiveUp) or _is_final(leaf, give_up_on)), error)


def _is_final(error: Exception, give_up_on: type[Exception] | tuple[type[Exception], ...]) -> bool:
    return isinstance(error, give_up_on) and not isinstance(error, Retry | PlatformPaused)


def is_chosen(error: Exception, decision: Retry | GiveUp) -> bool:
    """Return True if the handler has chosen to run again by `Retry`, and may. Nothing has failed then."""
    may = isinstance(decision, Retry) and not isinstance(decision, Defer)
    return may and all(isinstance(leaf, Retry) for leaf in leaves(error))


def error_text(error: Exception) -> str:
    """Return the words about the error that may be stored: its class, or the reason of the decision, if it has one."""
    decides = decisive(error)
    return (isinstance(decides, Retry | GiveUp) and decides.reason) or error_class(error)


def error_class(error: BaseException) -> str:
    """Return class, status and misunderstood field, never the message; of a group its members' classes."""
    if isinstance(error, BaseExceptionGroup):
        return f"{type(error).__name__} ({', '.join(sorted({error_class(leaf) for leaf in leaves(error)}))})"
    words = [type(error).__name__]
    if isinstance(error, ApiError):
        # Places in lists are left out, so that equal mistakes are one cause.
        words += [str(error.status or ""), re.sub(r"\b\d+\b", "*", error.cause)]
    return " ".join(filter(None, words))


def _platform_wait(error: BaseException, pause: float, age: float) -> float:
    """Return the seconds to wait for the platform, or 0 if the failure is the event's own."""
    if isinstance(error, ApiError) and error.operation == "token":  # However old the event is: it has no part in this.
        return max(pause, error.retry_after or 1.0)
    if isinstance(error, Unavailable) and error.cause == UNSENDABLE:
        return max(pause, UNSENDABLE_SECONDS)
    if age >= FREE_WAIT_SECONDS:
        return 0.0
    if isinstance(error, PlatformPaused):  # The call was not sent, even if the pause is over by now.
        return max(pause, error.retry_after or 0.0)
    refused = isinstance(error, Unauthorized) and error.status == HTTPStatus.UNAUTHORIZED
    is_other = isinstance(error, InvalidResponse) and error.cause in IN_ITS_PLACE
    return pause if refused or is_other or isinstance(error, Unavailable) else 0.0
