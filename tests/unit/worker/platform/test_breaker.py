"""The decisions of one process's circuit breaker, and what it asks of Redis, which a double answers."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY
from redis.exceptions import ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeout
from structlog.testing import capture_logs

from credhook.store import Keys
from credhook.worker.api.errors import ApiError, Unauthorized
from credhook.worker.platform.circuit import (
    MARGIN_SECONDS,
    MAX_RETRY_AFTER_SECONDS,
    PAUSES,
    SLOW_START_BUDGET,
    SLOW_START_REFILL_SECONDS,
    SLOW_START_SECONDS,
    THRESHOLD,
    AnswerCount,
    CallOutcome,
    CallResult,
    Circuit,
    Phase,
    PlatformPaused,
    SlowStart,
    outcome_of,
)
from credhook.worker.platform.circuit_breaker import (
    ALLOWANCE_LASTS_SECONDS,
    PROBE_RETRY_SECONDS,
    REFUSED_SECONDS,
    CircuitBreaker,
)
from credhook.worker.platform.limits import Allowance

NOW = 1_000.0
CLOSED = Circuit()
SUSPECT = Circuit(score=3)
NEARLY = Circuit(score=THRESHOLD - 1)
PAUSED = Circuit(is_open=True, trips=2, until=NOW + 4)
PROBING = Circuit(is_open=True, trips=2, until=NOW - 1)
ANSWERED, FAILED, UNANSWERED, REFUSED = CallResult


def outcome(kind: CallResult, wait: float | None = None, *, probe: bool = False, at: float = NOW) -> CallOutcome:
    return CallOutcome(kind, at, 1.0, wait, probe)


@pytest.mark.parametrize(
    ("before", "what", "after"),
    [
        # Closed: answers and failures are weighed.
        (CLOSED, outcome(ANSWERED), CLOSED),
        (SUSPECT, outcome(ANSWERED), Circuit(score=2)),
        (CLOSED, outcome(FAILED), Circuit(score=1)),
        (CLOSED, outcome(UNANSWERED), Circuit(score=1)),
        (NEARLY, outcome(FAILED), Circuit(is_open=True, trips=1, until=NOW + PAUSES.first)),
        (SUSPECT, outcome(REFUSED), Circuit(is_open=True, trips=1, until=NOW + PAUSES.first)),
        (SUSPECT, outcome(REFUSED, 0.0), Circuit(is_open=True, trips=1, until=NOW + PAUSES.first)),
        (SUSPECT, outcome(REFUSED, 20), Circuit(is_open=True, until=NOW + 20 + MARGIN_SECONDS)),
        (CLOSED, outcome(REFUSED, 86_400), Circuit(is_open=True, until=NOW + MAX_RETRY_AFTER_SECONDS + MARGIN_SECONDS)),
        # Paused: calls that were sent before change nothing, except a longer pause that the platform asks for.
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
        (PROBING, outcome(UNANSWERED, probe=True), Circuit(is_open=True, trips=3, until=NOW + 4)),
        (PROBING, outcome(REFUSED, probe=True), Circuit(is_open=True, trips=3, until=NOW + 4)),
        (PROBING, outcome(REFUSED, 2, probe=True), replace(PROBING, until=NOW + 2 + MARGIN_SECONDS)),
    ],
)
def test_outcome_of_a_call_changes_the_circuit(before: Circuit, what: CallOutcome, after: Circuit) -> None:
    assert before.after(what) == after


@pytest.mark.parametrize(
    ("before", "until", "after"),
    [
        (SUSPECT, NOW + 9, Circuit(is_open=True, until=NOW + 9)),
        (PAUSED, NOW + 1, PAUSED),
        (PAUSED, NOW + 9, replace(PAUSED, until=NOW + 9)),
        (PROBING, NOW + 9, replace(PROBING, until=NOW + 9)),
    ],
)
def test_pause_of_the_fleet_opens_the_circuit(before: Circuit, until: float, after: Circuit) -> None:
    assert before.paused(until) == after


@pytest.mark.parametrize(("share", "opens"), [(1.0, THRESHOLD), (0.95, 15), (0.8, 40), (0.2, None), (0.01, None)])
def test_circuit_opens_when_most_calls_fail(share: float, opens: int | None) -> None:
    dice, circuit, calls = random.Random(7), CLOSED, 0
    while not circuit.is_open and calls < 100_000:
        circuit = circuit.after(outcome(FAILED if dice.random() < share else ANSWERED))
        calls += 1
    assert calls <= opens if opens else not circuit.is_open


@pytest.mark.parametrize(
    ("status", "wait", "kind"),
    [
        *((status, None, ANSWERED) for status in (200, 204, 302, 400, 401, 403, 404, 409, 422)),
        *((status, None, FAILED) for status in (408, 425, 500, 502, 503, 504)),
        (None, None, UNANSWERED),
        (429, None, REFUSED),
        (429, 20.0, REFUSED),
        (503, 20.0, REFUSED),
        (503, 0.0, FAILED),
        (500, 20.0, FAILED),
        (404, 20.0, ANSWERED),
    ],
)
def test_status_decides_the_result(status: int | None, wait: float | None, kind: CallResult) -> None:
    assert outcome_of(status, wait, at=NOW).result is kind


@pytest.mark.parametrize(
    ("status", "cause", "kind"),
    [
        (200, "not_json", FAILED),
        (302, "redirect", FAILED),
        (200, "other_id", ANSWERED),
        (200, "too_large", ANSWERED),
        (404, "", ANSWERED),
    ],
)
def test_answer_in_the_platforms_place_is_a_failure(status: int, cause: str, kind: CallResult) -> None:
    assert outcome_of(status, None, at=NOW, cause=cause).result is kind


def test_slow_start_doubles_with_each_round_that_succeeds() -> None:
    start, rounds = SlowStart(), []
    start.begin(NOW)
    while (taken := start.allows(1_000, NOW)) < 1_000:
        rounds.append(taken)
        start.spend(taken)
        for _ in range(taken):
            start.succeeded()
    assert rounds == [1, 2, 4, 8, 16, 32, 64, 128]
    assert sum(rounds) == SLOW_START_BUDGET - 1


def test_slow_start_allows_an_event_a_second_without_success() -> None:
    start = SlowStart()
    start.begin(NOW)
    start.spend(1)
    assert start.allows(1_000, NOW + SLOW_START_REFILL_SECONDS - 0.1) == 0
    assert start.allows(1_000, NOW + SLOW_START_REFILL_SECONDS) == 1
    start.spend(1)
    assert start.allows(1_000, NOW + SLOW_START_REFILL_SECONDS + 0.1) == 0


def test_slow_start_ends_by_itself() -> None:
    start = SlowStart()
    for began in (NOW, NOW + 100):
        start.begin(began)
        assert start.allows(1_000, began + SLOW_START_SECONDS - 0.1) == 1
        assert start.allows(1_000, began + SLOW_START_SECONDS) == 1_000


def test_answers_are_counted_by_the_second() -> None:
    answers = AnswerCount()
    for at in (5.1, 5.2, 5.9, 6.0):
        answers.add(at)
    assert [answers.per_second(at) for at in (6.1, 7.0, 8.0)] == [3, 1, 0]
    answers.add(8.5)
    assert answers.per_second(10.0) == 0


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


class ScriptedStore:
    """Stands for Redis. `reply`: what each script returns or raises; `asked`: the scripts that ran, with arguments."""

    def __init__(self) -> None:
        self.queue, self.keys = "credhook", Keys("credhook")
        self.reply: dict[str, Any] = {"permit": [1, 0, 0, 0], "pause": [0, b""]}
        self.asked: list[tuple[str, Sequence[Any]]] = []

    async def run(self, script: str, arguments: Sequence[Any], *, keys: Sequence[str]) -> Any:
        self.asked.append((script, arguments))
        if isinstance(reply := self.reply[script], Exception):
            raise reply
        return reply


class Bench:
    """One process's breaker on a clock that the test moves."""

    def __init__(self, rate: float | None = None) -> None:
        self.now, self.store = NOW, ScriptedStore()
        url = "http://platform.example"
        self.breaker = CircuitBreaker(cast(Any, self.store), api_url=url, rate=rate, clock=lambda: self.now)

    async def call(self, status: int | None = 200, *, retry_after: float | None = None, cause: str = "") -> None:
        """Make one call, let it end so, and wait until the fleet has heard of it."""
        (await self.breaker.acquire("presentations.get")).ended(status, retry_after=retry_after, cause=cause)
        await self.breaker.aclose()

    def claims(self, wanted: int, *, unfetched: int = 0, found: int = 1_000, allowance: Allowance | None = None) -> int:
        """Claim events as a worker does, and return how many."""
        self.breaker.return_unused(unfetched=unfetched)
        allowed = self.breaker.allows(wanted, unfetched=unfetched)
        if allowed:
            self.breaker.claimed(min(found, allowed), allowance or Allowance())
        return min(found, allowed)

    @property
    def pauses(self) -> list[Sequence[Any]]:
        """The pauses that the fleet was told: ms, cause, answers, rate."""
        return [arguments for script, arguments in self.store.asked if script == "pause"]


SILENCE = [RedisTimeout(), ReadOnlyError(), ConnectionRefusedError()]


@pytest.mark.parametrize("silence", SILENCE, ids=lambda error: type(error).__name__)
async def test_limited_calls_are_refused_while_redis_does_not_answer(silence: Exception) -> None:
    bench = Bench(rate=5)
    bench.store.reply["permit"] = silence
    before = counted("credhook_platform_refused_total")
    with pytest.raises(PlatformPaused, match="CREDHOOK_RATE") as refused:
        await bench.call()
    assert refused.value.retry_after == 1.0
    assert counted("credhook_platform_refused_total") == before + 1


@pytest.mark.parametrize("silence", SILENCE, ids=lambda error: type(error).__name__)
async def test_unlimited_calls_pass_while_redis_does_not_answer(silence: Exception) -> None:
    bench = Bench()
    bench.store.reply["permit"] = silence
    await bench.call()
    await bench.call()
    assert len(bench.store.asked) == 1  # A second may pass before Redis is asked again.
    bench.now += ALLOWANCE_LASTS_SECONDS
    await bench.call()
    assert len(bench.store.asked) == 2


async def test_claimed_fetch_needs_no_second_token() -> None:
    bench = Bench(rate=5)
    bench.store.reply["permit"] = RedisTimeout()
    assert bench.claims(2, allowance=Allowance(limited=True)) == 2
    await bench.call()
    await bench.call()
    with pytest.raises(PlatformPaused):
        await bench.call()


def test_unused_tokens_are_given_back_with_the_next_claim() -> None:
    bench = Bench(rate=5)
    bench.claims(4, allowance=Allowance(limited=True))
    bench.breaker.return_unused(unfetched=1)  # The other three have ended without a fetch.
    assert bench.breaker.for_claims()[-1] == 3
    bench.breaker.claimed(0, Allowance(limited=True))
    assert bench.breaker.for_claims()[-1] == 0


async def test_token_beyond_the_timeout_refuses_the_call() -> None:
    bench = Bench(rate=5)
    bench.store.reply["permit"] = [0, 0, 70_000_000, 1]
    with pytest.raises(PlatformPaused, match="CREDHOOK_RATE") as refused:
        await bench.call()
    assert refused.value.retry_after == 70.0


async def test_pause_in_the_reply_to_a_call_refuses_it() -> None:
    bench = Bench()
    bench.store.reply["permit"] = [0, 9_000, 0, 0]
    with pytest.raises(PlatformPaused) as refused:
        await bench.call()
    assert refused.value.retry_after == 9.0
    assert (bench.breaker.phase, bench.claims(5)) == (Phase.OPEN, 0)


async def test_half_open_circuit_lets_one_call_through() -> None:
    bench = Bench()
    await bench.call(429, retry_after=1.0)
    bench.now += 2
    probe = await bench.breaker.acquire("presentations.get")
    with pytest.raises(PlatformPaused) as refused:
        await bench.breaker.acquire("presentations.get")
    assert refused.value.retry_after == PROBE_RETRY_SECONDS  # Without a wait, the event would spend an attempt.
    assert bench.claims(5) == 0
    probe.cancelled()
    await bench.call(200)
    assert bench.breaker.phase is Phase.CLOSED


async def test_events_follow_slowly_after_a_pause() -> None:
    bench = Bench()
    bench.claims(5, allowance=Allowance(pause=3.0))
    assert bench.claims(5, unfetched=5) == 0
    bench.now += 3
    assert bench.claims(5, unfetched=1) == 0  # The fetch that is due is the probe.
    assert bench.claims(5) == 1
    with capture_logs() as logs:
        await bench.call()
    assert [line["event"] for line in logs] == ["platform_probed", "platform_resumed"]
    assert bench.claims(5) == 1
    await bench.call()
    assert bench.claims(5) == 2
    assert (bench.claims(5), bench.breaker.retry_in()) == (0, 0.05)


async def test_calls_of_handlers_let_no_event_follow() -> None:
    bench = Bench()
    await bench.call(429, retry_after=1.0)
    bench.now += 2
    await bench.call()
    assert bench.claims(5) == 1
    await bench.call()  # The fetch.
    for _ in range(5):
        await bench.call()
    assert bench.claims(9) == 2


async def test_claims_that_find_no_event_use_no_budget_up() -> None:
    bench = Bench()
    await bench.call(429, retry_after=1.0)
    bench.now += 2
    assert bench.claims(5, found=0) == 0
    assert bench.claims(5) == 1


@pytest.mark.parametrize(
    ("endings", "shared"),
    [
        pytest.param([(500, None, "")] * (THRESHOLD - 1), [], id="too few failures"),
        pytest.param([(500, None, "")] * THRESHOLD, ["500"], id="failures"),
        pytest.param([(None, None, "timeout")] * THRESHOLD, ["timeout"], id="no answers"),
        pytest.param([(429, 20.0, "")], ["429"], id="429"),
        pytest.param([(503, 20.0, "")], ["503"], id="503 with Retry-After"),
        pytest.param([(401, None, "")] * 2 * THRESHOLD, [], id="401"),
    ],
)
async def test_circuit_that_opens_pauses_the_fleet(
    endings: list[tuple[int | None, float | None, str]], shared: list[str]
) -> None:
    bench = Bench()
    for status, retry_after, cause in endings:
        await bench.call(status, retry_after=retry_after, cause=cause)
    assert [cause for _, cause, *_ in bench.pauses] == shared


async def test_circuit_tells_the_longest_pause_once() -> None:
    bench = Bench()
    permits = [await bench.breaker.acquire("presentations.get") for _ in range(3)]
    for permit, retry_after in zip(permits, (20.0, 20.5, 40.0), strict=True):
        permit.ended(429, retry_after=retry_after)
    await bench.breaker.aclose()
    assert [ms for ms, *_ in bench.pauses] == [20_050, 40_050]


@pytest.mark.parametrize(("status", "pauses"), [(500, 2), (None, 1)])
async def test_failed_probe_pauses_the_fleet_again_if_the_platform_answered(status: int | None, pauses: int) -> None:
    """A probe without an answer may have met a fault of this process's network."""
    bench = Bench()
    await bench.call(429, retry_after=1.0)
    bench.now += 2
    await bench.call(status, cause="refused")
    assert bench.breaker.phase is Phase.OPEN
    assert len(bench.pauses) == pauses


async def test_pause_tells_the_answers_of_the_last_second() -> None:
    bench = Bench(rate=5)
    bench.store.reply["permit"] = [1, 0, 0, 1]
    for status in (200, 404, 429):
        await bench.call(status)
    assert bench.pauses[0][1:] == ["429", 2, 5]


async def test_process_pauses_although_redis_does_not_answer() -> None:
    bench = Bench()
    bench.store.reply["pause"] = RedisTimeout()
    with capture_logs() as logs:
        await bench.call(429, retry_after=20.0)
    assert bench.breaker.pause() == pytest.approx(20.0 + MARGIN_SECONDS)
    assert [line["event"] for line in logs] == ["platform_unshared", "platform_paused"]


@pytest.mark.parametrize(
    ("cause", "reply", "hint"),
    [
        ("500", [0, b""], "resume by themselves"),
        ("refused", [0, b""], "CREDHOOK_API_URL"),
        ("429", [0, b"2.857"], "about 2.9 requests/s have passed; set CREDHOOK_RATE"),
    ],
)
async def test_log_says_what_to_do_about_a_pause(cause: str, reply: list[Any], hint: str) -> None:
    bench = Bench()
    bench.store.reply["pause"] = reply
    with capture_logs() as logs:
        for _ in range(1 if cause == "429" else THRESHOLD):
            await bench.call(int(cause) if cause.isdigit() else None, cause=cause)
    assert [(line["event"], line["cause"]) for line in logs] == [("platform_paused", cause)]
    assert hint in logs[0]["hint"]


async def test_pause_that_another_process_began_is_not_logged_again() -> None:
    bench = Bench()
    bench.store.reply["pause"] = [19_900, b""]
    with capture_logs() as logs:
        await bench.call(429, retry_after=20.0)
    assert logs == []


@pytest.mark.parametrize(("status", "outcome"), [(None, "unanswered"), (401, "refused")])
def test_missing_tokens_are_counted_by_reason(status: int | None, outcome: str) -> None:
    before = counted("credhook_token_fetches_total", outcome=outcome)
    Bench().breaker.token_fetched(ApiError("token: no", operation="token", status=status))
    assert counted("credhook_token_fetches_total", outcome=outcome) == before + 1


NO_TOKEN = Unauthorized("token: refused: 401; check it", operation="token", status=401, retry_after=9.0)


async def test_process_without_a_token_claims_nothing_until_one_is_granted() -> None:
    bench = Bench()
    under_way = await bench.breaker.acquire("presentations.get")  # With the token before.
    for _ in range(2 * THRESHOLD):
        bench.breaker.token_fetched(NO_TOKEN)
    under_way.ended(200)
    assert (bench.claims(5), bench.breaker.pause()) == (0, 9.0)
    bench.now += 3_600
    assert (bench.claims(5), bench.breaker.retry_in() > 0, "401" in bench.breaker.credential_error) == (0, True, True)
    bench.breaker.token_fetched(None)
    assert (bench.claims(5), bench.breaker.credential_error) == (5, "")
    assert bench.pauses == []  # Another process may have a credential.


async def test_process_whose_token_is_refused_tries_one_event_at_a_time() -> None:
    bench = Bench()
    await bench.call(401)
    assert (bench.claims(5), bench.breaker.pause()) == (0, REFUSED_SECONDS)  # A refusal in a pause costs no attempt.
    bench.now += REFUSED_SECONDS
    bench.breaker.token_fetched(None)
    assert (bench.claims(5), bench.claims(5)) == (1, 0)
    assert "CREDHOOK_CLIENT_ID" in bench.breaker.credential_error
    await bench.call(404)
    assert (bench.claims(5), bench.breaker.credential_error) == (5, "")
