import pytest

from worker.api.errors import ApiError, InvalidRequest, NotAuthenticated, NotThere, NotUnderstood, TryLater
from worker.retry import CEILING, GiveUp, Retry, backoff, cause, decide


def later(error: Exception, attempt: int = 1, chance: float = 1.0) -> float | None:
    """Seconds until the next attempt, or None if it was given up."""
    decision = decide(error, attempt, max_attempts=12, chance=lambda: chance)
    return decision.after if isinstance(decision, Retry) else None


def api_error(kind: type[ApiError], status: int | None = None) -> ApiError:
    return kind("an operation failed", operation="presentations.get", status=status)


def too_many(retry_after: float) -> ApiError:
    return TryLater("an operation failed", operation="presentations.get", status=429, retry_after=retry_after)


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 1.0), (2, 5.0), (3, 30.0), (4, 120.0), (5, None), (12, None)])
def test_what_is_not_there_yet_is_looked_for_four_times(attempt: int, seconds: float | None) -> None:
    assert later(api_error(NotThere, 404), attempt) == seconds


@pytest.mark.parametrize(
    "error",
    [
        api_error(TryLater, 503),
        api_error(TryLater),
        api_error(NotAuthenticated, 401),
        api_error(NotUnderstood, 200),
        ValueError("x"),
        TimeoutError(),
        Retry(),
    ],
    ids=repr,
)
def test_what_may_mend_itself_comes_back_until_the_last_attempt(error: Exception) -> None:
    assert later(error, 1) == 5.0
    assert later(error, 3) == 45.0
    assert later(error, 11) == CEILING
    assert later(error, 12) is None


def test_what_the_platform_calls_wrong_is_given_up_at_once() -> None:
    assert later(api_error(InvalidRequest, 400)) is None


def test_retry_after_is_the_least_that_is_waited() -> None:
    assert later(too_many(20.0), chance=0.0) == 20.0
    assert later(too_many(1.0), attempt=3, chance=1.0) == 45.0


def test_a_handler_decides_itself() -> None:
    assert later(Retry(after=7)) == 7
    assert later(Retry(after=7), attempt=12) is None
    reason = GiveUp("account is closed")
    assert decide(reason, 1, max_attempts=12) is reason


def test_jitter_spreads_over_the_whole_interval() -> None:
    assert backoff(3, 0.0) == 0.0
    assert backoff(3, 0.5) == 22.5
    assert backoff(10_000, 1.0) == CEILING


def test_a_cause_never_holds_the_message() -> None:
    assert cause(ValueError("Jane Doe, born 1990")) == "ValueError"
    assert cause(api_error(TryLater, 503)) == "TryLater 503"
    assert cause(GiveUp("account is closed")) == "GiveUp: account is closed"
