"""What to do about a failure: (error, attempt) → `Retry` or `GiveUp`. Pure.

A handler may raise either itself; that is then the decision.
"""

import random
from collections.abc import Callable
from typing import Final

from worker.api.errors import ApiError, InvalidRequest, NotThere, TryLater

#: Seconds before the next look at a resource that is not there yet: a detail can lag behind its event by seconds.
#: Public material about sibling platforms suggests the scale; nobody documents it.
NOT_THERE: Final = (1.0, 5.0, 30.0, 120.0)

#: Exponential backoff: the first ceiling in seconds, its growth, and the highest ceiling. The default of
#: twelve attempts ends after 16.6 hours at most and half of that on average, about where senders of webhooks end.
FIRST: Final = 5.0
GROWTH: Final = 3.0
CEILING: Final = 4 * 3_600.0


class Retry(Exception):
    """Come back to this event, after so many seconds or when the policy says.

    A handler raises it when the time is not right; it counts as an attempt.
    """

    def __init__(self, after: float | None = None) -> None:
        """`after`: seconds until the next attempt; None leaves it to the policy."""
        super().__init__(after)
        self.after = after


class GiveUp(Exception):
    """Never run this handler for this event again; the event is kept as dead, with the reason.

    The reason is stored and logged: name the rule, not the person.
    """

    def __init__(self, reason: str) -> None:
        """`reason`: a few words for the operator."""
        super().__init__(reason)
        self.reason = reason[:200]


def decide(
    error: Exception, attempt: int, *, max_attempts: int, chance: Callable[[], float] = random.random
) -> Retry | GiveUp:
    """Decide about the failure of an attempt.

    Args:
        error: what the fetch or a handler raised.
        attempt: which attempt it was, counted from 1.
        max_attempts: after how many to give up.
        chance: a number from 0 to 1, drawn anew for each decision, so that what failed together does not return
        together.

    Returns:
        `Retry` with its seconds filled in, or `GiveUp`.
    """
    if isinstance(error, GiveUp):
        return error
    name = type(error).__name__
    if isinstance(error, InvalidRequest):
        return GiveUp(name)  # The platform will not like the same request better tomorrow.
    if isinstance(error, NotThere):
        return Retry(NOT_THERE[attempt - 1]) if attempt <= len(NOT_THERE) else GiveUp(name)
    if attempt >= max_attempts:
        return GiveUp(name)
    if isinstance(error, Retry) and error.after is not None:
        return Retry(max(0.0, error.after))
    wait = backoff(attempt, chance())
    if isinstance(error, TryLater) and error.retry_after is not None:
        wait = max(wait, error.retry_after)
    return Retry(wait)


def backoff(attempt: int, chance: float) -> float:
    """Seconds to wait after an attempt, counted from 1: exponential, capped, with full jitter."""
    ceiling = min(CEILING, FIRST * GROWTH ** min(attempt - 1, 20))
    return ceiling * chance


def cause(error: Exception) -> str:
    """The error in the few words that may be stored: its class, and a reason or status if it has one. No message."""
    if isinstance(error, GiveUp):
        return f"GiveUp: {error.reason}"
    if isinstance(error, ApiError) and error.status is not None:
        return f"{type(error).__name__} {error.status}"
    return type(error).__name__
