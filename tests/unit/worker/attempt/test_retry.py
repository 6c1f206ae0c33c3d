from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from credhook import GiveUp, Retry
from credhook.worker.api.errors import (
    UNSENDABLE,
    ApiError,
    InvalidRequest,
    InvalidResponse,
    NotFound,
    Unauthorized,
    Unavailable,
)
from credhook.worker.attempt import retry
from credhook.worker.attempt.retry import (
    ConcurrencyReached,
    DataGone,
    Defer,
    after_fetch,
    after_handler,
    error_text,
    is_chosen,
)
from credhook.worker.attempt.running import StillRunning
from credhook.worker.platform.circuit import PlatformPaused


def seconds(decision: Retry | GiveUp) -> float | None:
    """Until the next attempt, or None if it was given up."""
    return decision.after if isinstance(decision, Retry) else None


def fetching(error: Exception, attempt: int = 1, age: float = 0.0, chance: float = 1.0) -> float | None:
    return seconds(after_fetch(error, attempt, age=age, max_attempts=12, chance=lambda: chance))


def handling(error: Exception, attempt: int = 1, chance: float = 1.0) -> float | None:
    return seconds(after_handler(error, attempt, max_attempts=12, chance=lambda: chance))


def api_error(kind: type[ApiError], status: int | None = None, retry_after: float | None = None) -> ApiError:
    return kind("an operation failed", operation="presentations.get", status=status, retry_after=retry_after)


@pytest.mark.parametrize(
    ("age", "attempt", "wait"),
    [
        *((0.0, 1, 1.0), (1.2, 2, 4.8), (6.5, 3, 29.5), (40.0, 4, 116.0), (156.0, 5, None), (3_600.0, 1, 5.0)),
        *((2.0, 9, 4.0), (2.0, 12, None), (3_600.0, 2, None)),  # Other failures came first.
        *((0.0, 2, 5.0), (0.0, 3, 30.0), (0.0, 4, 120.0), (0.0, 11, 120.0), (0.0, 12, None)),  # The clock was set back.
    ],
)
def test_missing_resource_is_fetched_again_at_growing_ages(age: float, attempt: int, wait: float | None) -> None:
    for error in (api_error(NotFound, 404), api_error(InvalidRequest, 409), DataGone(was_seen=False)):
        assert fetching(error, attempt, age) == (None if wait is None else pytest.approx(wait))


MAY_MEND = [
    api_error(Unavailable, 503),
    api_error(Unavailable),
    api_error(Unauthorized, 401),
    api_error(InvalidResponse, 200),
    ValueError("x"),
    TimeoutError(),
]


@pytest.mark.parametrize("error", MAY_MEND, ids=repr)
@pytest.mark.parametrize("decide", [fetching, handling])
def test_passing_failure_comes_back_until_the_last_attempt(
    decide: Callable[[Exception, int], float | None], error: Exception
) -> None:
    assert decide(error, 1) == 5.0
    assert decide(error, 3) == 45.0
    assert decide(error, 11) == 4 * 3_600.0
    assert decide(error, 12) is None


@pytest.mark.parametrize("status", [None, 400, 405, 414, 422])
def test_only_a_refused_fetch_is_given_up_at_once(status: int | None) -> None:
    assert fetching(api_error(InvalidRequest, status)) is None
    assert handling(api_error(NotFound, 404)) == handling(api_error(InvalidRequest, status)) == 5.0


@pytest.mark.parametrize("status", [402, 409, 423, 451])
def test_refusal_that_may_pass_is_tried_again(status: int) -> None:
    assert fetching(api_error(InvalidRequest, status)) is not None


@pytest.mark.parametrize("decide", [retry.after_fetch, retry.after_handler])
def test_request_that_cannot_be_sent_spends_no_attempt(decide: Callable[..., Retry | GiveUp]) -> None:
    """A setting is wrong. Events wait until somebody corrects it."""
    error = Unavailable("not sent", operation="presentations.get", cause=UNSENDABLE)
    decision = decide(error, 12, age=10 * retry.FREE_WAIT_SECONDS, max_attempts=12)
    assert isinstance(decision, Defer)
    assert (decision.after or 0) >= 30


def test_retry_after_is_a_minimum_with_a_ceiling() -> None:
    assert fetching(api_error(Unavailable, 429, 20.0), chance=0.0) == 20.0
    assert fetching(api_error(Unavailable, 429, 1.0), attempt=3) == 45.0
    assert fetching(api_error(Unavailable, 429, 99_999_999.0)) == retry.BACKOFF.longest


HELD_UP = [
    (api_error(Unavailable, 503), 20.0, 20.0),
    (api_error(Unauthorized, 401), 20.0, 20.0),
    (InvalidResponse("a login", status=302, cause="redirect"), 20.0, 20.0),
    (InvalidResponse("a page of maintenance", status=200, cause="not_json"), 20.0, 20.0),
    (Unauthorized("refused", operation="token", status=401, retry_after=2.0), 0.0, 2.0),
    (Unauthorized("refused", operation="token", status=401, retry_after=2.0), 9.0, 9.0),
    (Unauthorized("refused", operation="token", status=401), 0.0, 1.0),
    (PlatformPaused("not sent", retry_after=0.2), 0.0, 0.2),
    (PlatformPaused("not sent", retry_after=9.0), 4.0, 9.0),
    (PlatformPaused("not sent", retry_after=4.0), 9.0, 9.0),
]


@pytest.mark.parametrize(("error", "pause", "least"), HELD_UP)
@pytest.mark.parametrize("decide", [after_fetch, after_handler])
def test_waiting_for_the_platform_spends_no_attempt_for_a_day(
    decide: Callable[..., Retry | GiveUp], error: Exception, pause: float, least: float
) -> None:
    for chance in (0.0, 1.0):
        waits = decide(error, 12, age=retry.FREE_WAIT_SECONDS - 1, max_attempts=12, pause=pause, chance=lambda: chance)  # noqa: B023
        assert isinstance(waits, Defer)
        assert waits.after == least + chance * max(1.0, least)
    later = decide(error, 12, age=retry.FREE_WAIT_SECONDS, max_attempts=12, pause=pause)
    # The event has no part in it if there is no token.
    assert isinstance(later, Defer if getattr(error, "operation", "") == "token" else GiveUp)


@pytest.mark.parametrize(
    "error",
    [
        api_error(Unauthorized, 403),
        api_error(NotFound, 404),
        InvalidResponse("of another", status=200, cause="other_id"),
        ValueError(),
    ],
    ids=repr,
)
def test_failure_of_the_event_alone_spends_attempts_during_a_pause(error: Exception) -> None:
    assert isinstance(after_fetch(error, 12, age=0.0, max_attempts=12, pause=20.0), GiveUp)


def test_handler_decides_itself() -> None:
    assert [handling(Retry(after=seconds)) for seconds in (0, 7, 604_800)] == [0, 7, 604_800]
    assert [handling(Retry(after=timedelta(minutes=minutes))) for minutes in (1, 10_080)] == [60, 604_800]
    assert handling(Retry(), attempt=2) == 15.0
    assert handling(Retry(after=7), attempt=12) is None
    assert handling(Retry(reason="not approved yet"), attempt=2) == 15.0
    assert [ConcurrencyReached().after, ConcurrencyReached(1.5).after] == [0.5, 1.5]
    for one in (GiveUp("account is closed"), StillRunning()):
        assert after_handler(one, 1, max_attempts=12) is after_handler(one, 12, max_attempts=12) is one


PAUSED = PlatformPaused("not sent", retry_after=9.0)
LONGER = PlatformPaused("not sent", retry_after=30.0)
CLOSED = GiveUp("account is closed")
NESTED = ExceptionGroup("b", [KeyError(), CLOSED])


@pytest.mark.parametrize(("members", "attempt", "wait", "text"), [
    ([Retry(after=7)], 1, 7, "ExceptionGroup (Retry)"),
    ([ValueError(), Retry(after=7), Retry(), Retry(after=8)], 1, 8, "ExceptionGroup (Retry, ValueError)"),
    ([CLOSED, Retry(after=7)], 1, 7, "ExceptionGroup (GiveUp, Retry)"),
    ([CLOSED, Retry(after=7)], 12, None, "ExceptionGroup (GiveUp, Retry)"),
    ([ValueError(), CLOSED], 1, None, "account is closed"),
    ([ValueError(), NESTED], 1, None, "account is closed"),
    ([ValueError(), OSError()], 1, None, "ExceptionGroup (OSError, ValueError)"),
    ([ValueError(), KeyError(), KeyError()], 1, 5, "ExceptionGroup (KeyError, ValueError)"),
    ([PAUSED, ValueError()], 12, None, "ExceptionGroup (PlatformPaused, ValueError)"),
    ([PAUSED, LONGER, api_error(Unavailable, 503)], 12, 30 + 30, "ExceptionGroup (PlatformPaused, Unavailable 503)"),
])  # fmt: skip
def test_decision_in_a_group_counts_as_if_raised_alone(
    members: list[Exception], attempt: int, wait: float | None, text: str
) -> None:
    group = ExceptionGroup("Jane Doe", members)
    pause = 20.0 if PAUSED in members else 0.0
    decided = after_handler(group, attempt, max_attempts=12, pause=pause, give_up_on=OSError, chance=lambda: 1.0)
    assert seconds(decided) == wait
    assert isinstance(decided, Defer) == (wait == 60)
    assert error_text(group) == text


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), 604_800.1, 1e13, timedelta(days=8), "30"])
def test_wrong_wait_fails_where_it_is_written(after: Any) -> None:
    with pytest.raises(ValueError, match="604,800"):
        Retry(after=after)


def test_cause_never_holds_the_message() -> None:
    assert error_text(ValueError("Jane Doe, born 1990")) == "ValueError"
    assert error_text(GiveUp(ValueError("Jane Doe"))) == "ValueError"  # type: ignore[arg-type]
    assert error_text(api_error(Unavailable, 503)) == "Unavailable 503"
    assert error_text(Unavailable("https://platform.example/…", cause="certificate")) == "Unavailable certificate"
    assert error_text(InvalidResponse("no", status=200, cause="credentials.3.attributes: dict type")) == (
        "InvalidResponse 200 credentials.*.attributes: dict type"
    )
    assert error_text(Unavailable("no")) == "Unavailable"
    assert error_text(GiveUp("account is closed")) == "account is closed"
    assert error_text(GiveUp("x" * 10_000)) == "x" * 200  # Redis and the log keep it.
    assert error_text(GiveUp("\udc80 closed")) == "? closed"


@pytest.mark.parametrize(("error", "text"), [
    (Retry(5, "not approved yet"), "not approved yet"), (Retry(5), "Retry"), (GiveUp(), "GiveUp"),
    (GiveUp("closed"), "closed"), (Retry(reason=cast(Any, {"name": "Ada"})), "dict"),
    (Retry(reason="x" * 300), "x" * 200),
    (ExceptionGroup("", [ValueError(), Retry(5, "not approved yet")]), "not approved yet"),
])  # fmt: skip
def test_reason_of_a_decision_is_kept(error: Exception, text: str) -> None:
    assert error_text(error) == text


@pytest.mark.parametrize("decision", [Retry, GiveUp])
def test_decision_can_be_raised_as_a_class(decision: type[Retry | GiveUp]) -> None:
    with pytest.raises(decision) as raised:
        raise decision
    assert error_text(raised.value) == decision.__name__


@pytest.mark.parametrize(("error", "decision", "chosen"), [
    (Retry(5), Retry(5), True), (Retry(), Retry(15), True), (ValueError(), Retry(15), False),
    (Retry(5), GiveUp("Retry"), False),
    (ExceptionGroup("", [Retry(5), ValueError()]), Retry(5), False),
    (ConcurrencyReached(), ConcurrencyReached(), False),
])  # fmt: skip
def test_retry_of_a_handler_is_chosen(error: Exception, decision: Retry | GiveUp, chosen: bool) -> None:
    assert is_chosen(error, decision) is chosen
