"""The breaker's decisions, one by one and in a row, and those of the rate limit if Redis does not answer."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeout
from structlog.testing import capture_logs

from credhook.worker.api.errors import ApiError
from credhook.worker.platform.circuit import (
    MARGIN_SECONDS,
    MAX_RETRY_AFTER_SECONDS,
    PAUSES,
    SLOW_START_BUDGET,
    SLOW_START_SECONDS,
    THRESHOLD,
    CallOutcome,
    CallResult,
    Circuit,
    PlatformPaused,
    SlowStart,
    outcome_of,
)
from credhook.worker.platform.circuit_breaker import CircuitBreaker
from credhook.worker.platform.shared_circuit import SharedCircuit
from support.store.stores import store_on

NOW = 1_000.0
CLOSED = Circuit()
SUSPECT = Circuit(score=3)
NEARLY = Circuit(score=THRESHOLD - 1)
PAUSED = Circuit(is_open=True, trips=2, until=NOW + 4)
PROBING = Circuit(is_open=True, trips=2, until=NOW - 1)
ANSWERED, FAILED, REFUSED = CallResult.ANSWERED, CallResult.FAILED, CallResult.REFUSED


def outcome(kind: CallResult, wait: float | None = None, *, probe: bool = False, at: float = NOW) -> CallOutcome:
    return CallOutcome(kind, at, 1.0, wait, probe)


@pytest.mark.parametrize(
    ("before", "what", "after"),
    [
        # Closed: answers and failures are weighed.
        (CLOSED, outcome(ANSWERED), CLOSED),
        (SUSPECT, outcome(ANSWERED), Circuit(score=2)),
        (CLOSED, outcome(FAILED), Circuit(score=1)),
        (NEARLY, outcome(FAILED), Circuit(is_open=True, trips=1, until=NOW + PAUSES.first)),
        (SUSPECT, outcome(REFUSED), Circuit(is_open=True, trips=1, until=NOW + PAUSES.first)),
        (SUSPECT, outcome(REFUSED, 0.0), Circuit(is_open=True, trips=1, until=NOW + PAUSES.first)),
        (SUSPECT, outcome(REFUSED, 20), Circuit(is_open=True, until=NOW + 20 + MARGIN_SECONDS)),
        (CLOSED, outcome(REFUSED, 86_400), Circuit(is_open=True, until=NOW + MAX_RETRY_AFTER_SECONDS + MARGIN_SECONDS)),
        # Paused: what was sent before changes nothing, save a longer pause that is asked for.
        (PAUSED, outcome(ANSWERED), PAUSED),
        (PAUSED, outcome(ANSWERED, probe=True), PAUSED),
        (PAUSED, outcome(FAILED), PAUSED),
        (PAUSED, outcome(REFUSED), PAUSED),
        (PAUSED, outcome(REFUSED, 2), PAUSED),
        (PAUSED, outcome(REFUSED, 8), replace(PAUSED, until=NOW + 8 + MARGIN_SECONDS)),
        # Probing: the probe decides.
        (PROBING, outcome(ANSWERED), PROBING),
        (PROBING, outcome(FAILED), PROBING),
        (PROBING, outcome(REFUSED), PROBING),
        (PROBING, outcome(REFUSED, 8), replace(PROBING, until=NOW + 8 + MARGIN_SECONDS)),
        (PROBING, outcome(ANSWERED, probe=True), CLOSED),
        (PROBING, outcome(FAILED, probe=True), Circuit(is_open=True, trips=3, until=NOW + 4)),
        (replace(PROBING, until=NOW), outcome(FAILED, probe=True), Circuit(is_open=True, trips=3, until=NOW + 4)),
        (replace(PROBING, trips=1), outcome(FAILED, probe=True), Circuit(is_open=True, trips=2, until=NOW + 2)),
        (replace(PROBING, trips=4), outcome(FAILED, probe=True), Circuit(is_open=True, trips=5, until=NOW + 16)),
        (replace(PROBING, trips=5), outcome(FAILED, probe=True), Circuit(is_open=True, trips=6, until=NOW + 30)),
        (replace(PROBING, trips=9), outcome(FAILED, probe=True), Circuit(is_open=True, trips=10, until=NOW + 30)),
        (PROBING, outcome(REFUSED, probe=True), Circuit(is_open=True, trips=3, until=NOW + 4)),
        (PROBING, outcome(REFUSED, 2, probe=True), replace(PROBING, until=NOW + 2 + MARGIN_SECONDS)),
    ],
)
def test_what_a_call_came_to_changes_the_circuit(before: Circuit, what: CallOutcome, after: Circuit) -> None:
    assert before.after(what) == after


@pytest.mark.parametrize(("share", "opens"), [(1.0, THRESHOLD), (0.95, 15), (0.8, 40), (0.2, None), (0.01, None)])
def test_it_opens_when_most_calls_fail_and_not_for_a_few_failures_among_many_answers(
    share: float, opens: int | None
) -> None:
    dice, circuit, calls = random.Random(7), CLOSED, 0
    while not circuit.is_open and calls < 100_000:
        circuit = circuit.after(outcome(FAILED if dice.random() < share else ANSWERED))
        calls += 1
    assert calls <= opens if opens else not circuit.is_open


@pytest.mark.parametrize(
    ("status", "wait", "kind"),
    [
        *((status, None, ANSWERED) for status in (200, 204, 302, 400, 403, 404, 409, 422)),
        *((status, None, FAILED) for status in (None, 401, 408, 425, 500, 502, 503, 504)),
        (429, None, REFUSED),
        (429, 20.0, REFUSED),
        (503, 20.0, REFUSED),
        (503, 0.0, FAILED),
        (500, 20.0, FAILED),
        (401, 20.0, FAILED),
        (404, 20.0, ANSWERED),
    ],
)
def test_a_status_says_how_the_platform_is(status: int | None, wait: float | None, kind: CallResult) -> None:
    assert outcome_of(status, wait, at=NOW).result is kind


def test_slow_start_doubles_with_each_round_that_succeeds() -> None:
    start, rounds = SlowStart(), []
    start.begin()
    while (taken := start.allows(1_000)) < 1_000:
        rounds.append(taken)
        start.spend(taken)
        for _ in range(taken):
            start.succeeded()
    assert rounds == [1, 2, 4, 8, 16, 32, 64, 128]
    assert sum(rounds) == SLOW_START_BUDGET - 1


def test_slow_start_ends_by_itself() -> None:
    start = SlowStart()
    for _ in range(2):
        start.begin()
        for _ in range(SLOW_START_SECONDS - 1):
            start.second_passed()
        assert start.allows(1_000) == 1
        start.second_passed()
        assert start.allows(1_000) == 1_000


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


SILENCE = [RedisTimeout(), ReadOnlyError(), ConnectionRefusedError()]


@pytest.fixture
def bucket() -> AsyncMock:
    """A rate limit that answers as the test says."""
    return AsyncMock()


@pytest.fixture
async def breaker(bucket: AsyncMock) -> AsyncIterator[CircuitBreaker]:
    async with Redis(port=1) as nobody:
        breaker = CircuitBreaker(store_on(nobody), api_url="http://platform.example", rate=5, clock=lambda: NOW)
        breaker._rate_limit = bucket
        breaker._shared = SharedCircuit()
        yield breaker


async def test_as_many_are_admitted_as_the_bucket_gave(breaker: CircuitBreaker, bucket: AsyncMock) -> None:
    bucket.take.return_value = 3, 0.5
    assert await breaker.admit(10) == 3
    assert breaker.retry_in() == 0.5
    assert await breaker.admit(10) == 0
    breaker._ask_again_at = 0.0
    bucket.take.side_effect = lambda _: breaker._set(PAUSED) or (3, 0.5)  # type: ignore[func-returns-value]
    assert await breaker.admit(10) == 0  # The circuit has opened before the bucket answered.


@pytest.mark.parametrize("silence", SILENCE, ids=lambda error: type(error).__name__)
async def test_without_an_answer_of_redis_nothing_is_admitted_and_other_calls_are_refused(
    breaker: CircuitBreaker, bucket: AsyncMock, silence: Exception
) -> None:
    bucket.take.side_effect = silence
    before = counted("credhook_platform_refused_total")
    with pytest.raises((RedisError, OSError)) as raised:
        await breaker.admit(10)
    assert raised.value is silence
    with pytest.raises(PlatformPaused, match="CREDHOOK_RATE") as refused:
        await breaker.calls("presentations.get")
    assert refused.value.retry_after == 1.0
    assert counted("credhook_platform_refused_total") == before + 1
    await breaker.fetches("presentations.get")
    bucket.take.side_effect = [(1, 0.0)]
    await breaker.calls("presentations.get")


async def test_what_was_not_admitted_is_still_there_for_a_slow_start(
    breaker: CircuitBreaker, bucket: AsyncMock
) -> None:
    async def changes() -> AsyncIterator[None]:
        for _ in range(SLOW_START_SECONDS):  # All of them within one second.
            yield None

    breaker._slow_start.begin()
    bucket.take.side_effect = SILENCE[0]
    with pytest.raises(RedisTimeout):
        await breaker.admit(10)
    bucket.take.side_effect, bucket.take.return_value = None, (1, 0.0)
    assert await breaker.admit(10) == 1
    await breaker.give_back(1)  # No event was there.
    (await breaker.calls("presentations.get")).ended(200)  # A handler's call lets no event follow.
    assert breaker._slow_start.allows(10) == 1
    assert (await breaker.admit(10), breaker.retry_in()) == (1, 0.05)
    breaker._store.changes = changes  # type: ignore[method-assign,assignment]
    await breaker.watch()
    assert breaker._slow_start.allows(10) == 1  # Events that were claimed may never call.


@pytest.mark.parametrize(("status", "outcome"), [(None, "unanswered"), (401, "refused")])
async def test_missing_tokens_are_counted_by_reason(breaker: CircuitBreaker, status: int | None, outcome: str) -> None:
    before = counted("credhook_token_fetches_total", outcome=outcome)
    breaker.token_fetched(ApiError("token: no", operation="token", status=status))
    assert counted("credhook_token_fetches_total", outcome=outcome) == before + 1
    await breaker.aclose()


@pytest.mark.parametrize(("cause", "said"), [("refused", "CREDHOOK_API_URL"), ("500", "resume by themselves")])
async def test_a_pause_says_why_and_asks_a_silent_redis_once(breaker: CircuitBreaker, cause: str, said: str) -> None:
    breaker._store._store.run = asked = AsyncMock(side_effect=RedisTimeout)  # type: ignore[method-assign]
    with capture_logs() as logs:
        for _ in range(THRESHOLD):
            (await breaker.fetches("presentations.get")).ended(None, cause=cause)
            await breaker.aclose()
        breaker._log_transition(PAUSED, replace(PAUSED, until=PAUSED.until + 0.9), "429")  # It says nothing new.
    assert said in logs[-1]["hint"]
    assert asked.await_count == 1
