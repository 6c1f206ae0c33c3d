"""What to do about a failure: (error, attempt) → `Retry` or `GiveUp`. Pure.

A handler may raise either itself; that is then the decision.
"""

import math
import random
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Final

from credhook.backoff import Backoff
from credhook.worker.api.calls.errors import ApiError, InvalidRequest, NotFound, Unauthorized, Unavailable
from credhook.worker.attempt.missing_key import missing_key
from credhook.worker.platform.circuit import PlatformPaused

#: Ages of an event, in seconds, at which a resource that was not there is looked for again: a detail can lag behind its
#: event by seconds. Public material about sibling platforms suggests pauses of 1 s, 5 s, 30 s and 2 min; nobody
#: documents them. Counted by age, so that other failures do not use the patience up.
NOT_THERE: Final = (1.0, 6.0, 36.0, 156.0)
#: Seconds until the one second look at an event that was older than that when it was first worked on.
NOT_THERE_LATE: Final = 5.0

#: Waits between attempts, with full jitter. The default of twelve attempts ends after 16.6 hours at most and half of
#: that on average, about where senders of webhooks end.
BACKOFF: Final = Backoff(first=5.0, longest=4 * 3_600.0, growth=3.0, jitter=1.0)

#: Seconds for which an event waits for a platform that is down without spending attempts. After that they count: it may
#: be the event's own resource that brings the platform down.
PATIENCE: Final = 86_400.0

#: Seconds until an event asks again for a place with a handler that has as many as it may have, on average.
PLACE_AGAIN: Final = 1.0

#: The longest wait that a handler may ask for: as long as the ledger remembers a settled event.
LONGEST: Final = timedelta(days=7)


class Retry(Exception):
    """Come back to this event, after so many seconds or when the policy says.

    A handler raises it when the time is not right; it counts as an attempt.
    """

    def __init__(self, after: float | timedelta | None = None) -> None:
        """`after`: seconds until the next attempt, at most a week; None leaves it to the policy.

        Raises:
            ValueError: it is negative, not a number, or longer than a week.
        """
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if seconds is not None and not (math.isfinite(seconds) and 0 <= seconds <= LONGEST.total_seconds()):
            raise ValueError("Retry(after=…) should be from 0 to 604,800 seconds")
        super().__init__(seconds)
        self.after = seconds


class GiveUp(Exception):
    """Never run this handler for this event again; the event is kept as dead, with the reason.

    The reason is stored and logged: name the rule, not the person.
    """

    def __init__(self, reason: str) -> None:
        """`reason`: a few words for the operator."""
        super().__init__(reason)
        self.reason = str(reason)[:200].encode("utf-8", "replace").decode()


class DataGone(Exception):
    """The presentation does not hold the data that the event announces.

    Attributes:
        was_there: an earlier attempt had it, as far as is known; otherwise it may be late.
    """

    def __init__(self, *, was_there: bool) -> None:
        super().__init__("the presented data can no longer be read" if was_there else "no presented data")
        self.was_there = was_there


class Defer(Retry):
    """Come back once what it waits for is there, most often the platform; the attempt does not count."""


class ConcurrencyReached(Defer):
    """The handler has as many events under way as it may have. No attempt is spent."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        super().__init__(PLACE_AGAIN * (0.5 + chance()))


def after_fetch(
    error: Exception,
    attempt: int,
    *,
    age: float,
    max_attempts: int,
    pause: float = 0.0,
    chance: Callable[[], float] = random.random,
) -> Retry | GiveUp:
    """Decide about a fetch that failed.

    Args:
        error: what it raised.
        attempt: which attempt it was, counted from 1.
        age: seconds since the event was accepted.
        max_attempts: after how many to give up.
        pause: seconds for which no call is made to the platform, which is known to be down.
        chance: a number from 0 to 1, drawn anew for each decision, so that what failed together does not return
            together.

    Returns:
        `Retry` with its seconds filled in, or `GiveUp`.
    """
    if (wait := _held_up(error, pause)) > 0 and age < PATIENCE:
        return _postponed(wait, chance())
    lost = isinstance(error, DataGone) and error.was_there
    if isinstance(error, InvalidRequest) or lost or attempt >= max_attempts:
        return GiveUp(cause(error))  # The platform will not like the same request better tomorrow.
    if isinstance(error, NotFound | DataGone):
        return _look_again(error, attempt, age)
    wait = BACKOFF.wait(attempt, chance())
    if isinstance(error, Unavailable) and error.retry_after is not None:
        wait = max(wait, min(error.retry_after, BACKOFF.longest))
    return Retry(wait)


def after_handler(
    error: Exception,
    attempt: int,
    *,
    max_attempts: int,
    age: float = 0.0,
    pause: float = 0.0,
    backoff: Backoff = BACKOFF,
    give_up_on: tuple[type[Exception], ...] = (),
    chance: Callable[[], float] = random.random,
) -> Retry | GiveUp:
    """Decide about a handler that failed; arguments and result as in `after_fetch`.

    `backoff` and `give_up_on` are as the handler's author has said, see `Handlers.on`.
    """
    if isinstance(error, GiveUp | Defer):
        return error
    if (wait := _held_up(error, pause)) > 0 and age < PATIENCE:
        return _postponed(wait, chance())
    final = isinstance(error, give_up_on) and not isinstance(error, Retry | PlatformPaused)
    if final or attempt >= max_attempts:
        return GiveUp(cause(error))
    if isinstance(error, Retry) and error.after is not None:
        return error
    return Retry(min(backoff.wait(attempt, chance()), LONGEST.total_seconds()))


def cause(error: Exception) -> str:
    """The error in the few words that may be stored: its class, and what is known of why. No message.

    For a `GiveUp` its reason; for a call to the platform its status, or why there was no answer; for a key that the
    handler's code spells out and that was not there, the key.
    """
    if isinstance(error, GiveUp):
        return error.reason
    if (key := missing_key(error)) is not None:
        return f"KeyError {key!r}"
    why = (error.status or error.cause) if isinstance(error, ApiError) else ""
    return f"{type(error).__name__} {why}".rstrip()


def _held_up(error: Exception, pause: float) -> float:
    """Seconds that it is the platform's state, and not this event, that it waits for; 0 if it does not."""
    if isinstance(error, PlatformPaused):  # It has not been sent, whether or not the pause is over by now.
        return max(pause, error.retry_after or 0.0)
    refused = isinstance(error, Unauthorized) and error.status == HTTPStatus.UNAUTHORIZED
    return pause if refused or isinstance(error, Unavailable) else 0.0


def _postponed(pause: float, chance: float) -> Defer:
    """After the pause, spread over as long again: what was held up together should not return together."""
    return Defer(pause + chance * max(1.0, pause))


def _look_again(error: NotFound | DataGone, attempt: int, age: float) -> Retry | GiveUp:
    later = [moment - age for moment in NOT_THERE if moment > age]
    if later:
        return Retry(later[0])
    return Retry(NOT_THERE_LATE) if attempt == 1 else GiveUp(cause(error))
