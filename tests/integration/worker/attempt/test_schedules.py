"""Handlers of one event, each with its own attempts and due time: on a real Redis, with real attempts."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from credhook import GiveUp, Retry
from credhook.backoff import Backoff
from credhook.store import State
from credhook.store.causes import causes
from credhook.store.counts import EventCounts, counts_of
from credhook.worker.attempt.attempt import Attempt
from support.store.accepting import record
from support.store.stored_events import hasten
from support.store.stores import INDEX, store_on
from support.worker.attempts import Attempts, Planned, attempts
from support.worker.events_command import Run
from support.worker.fleet_harness import Answer, Stub, well
from support.worker.harness import COMPLETED


@pytest.fixture
def plan() -> Iterator[Planned]:
    with capture_logs():  # Nothing formats the tracebacks.
        yield Planned()


async def event_of(made: Attempts) -> None:
    await made.accept("e1", COMPLETED, "r1")


def schedule(redis: Redis, name: str) -> tuple[int, int]:
    attempts_spent, due, *_ = record(redis, "e1")[f"p:{name}"].split()
    return int(attempts_spent), int(due)


async def test_polling_handler_spends_no_attempt_of_its_sibling(
    redis_url: str, stub: Stub, plan: Planned, redis_client: Redis, events: Run
) -> None:
    plan.add("polls", retries=100)
    plan.add("fails", retries=2, backoff=Backoff(first=3_600, longest=3_600))
    plan.ends = {"polls": Retry(after=0.01), "fails": ValueError()}
    async with attempts(redis_url, stub, plan.handlers, MAX_ATTEMPTS=3) as made:
        await event_of(made)
        for _ in range(20):
            settlement = await made.next()
            assert settlement.state is State.WAITING
        assert (plan.ran.count("polls"), plan.ran.count("fails")) == (20, 1)
        assert schedule(redis_client, "test.polls")[0] == 20
        attempts_spent, due = schedule(redis_client, "test.fails")
        assert (attempts_spent, due - int(record(redis_client, "e1")["received"]) > 3_500_000) == (1, True)
        shown: Any = json.loads(events("show", "e1", "--json").stdout)
        assert {name: each["attempts"] for name, each in shown["schedules"].items()} == {
            "test.polls": 20, "test.fails": 1,
        }  # fmt: skip
        assert shown["next_attempt_at"] == shown["schedules"]["test.polls"]["next_attempt_at"]
        del plan.ends["polls"]
        assert (await made.next()).until == due  # The failing handler alone decides now.
        assert record(redis_client, "e1")["due"] == str(due)


async def test_handler_that_runs_after_another_has_retries_of_its_own(
    redis_url: str, stub: Stub, plan: Planned
) -> None:
    backoff = Backoff(first=0.01, longest=0.01)
    plan.add("first", retries=3, backoff=backoff)
    plan.add("second", retries=2, backoff=backoff, after="first")
    plan.ends = {"first": ValueError(), "second": ValueError()}
    async with attempts(redis_url, stub, plan.handlers) as made:
        await event_of(made)
        for _ in range(3):
            assert (await made.next()).state is State.WAITING
        del plan.ends["first"]
        states = [(await made.next()).state for _ in range(3)]
    assert states == [State.WAITING, State.WAITING, State.DEAD]
    assert plan.ran == [*["first"] * 4, *["second"] * 3]


async def test_fetch_that_fails_spends_no_attempt_of_a_handler(
    redis_url: str, stub: Stub, plan: Planned, redis_client: Redis
) -> None:
    plan.add("only", retries=0)
    stub.answer = lambda call: Answer(503) if call.number <= 3 else well(call)
    async with attempts(redis_url, stub, plan.handlers) as made:
        await event_of(made)
        for number in range(1, 4):
            assert (await made.next(Attempt(await made.claim_of("e1")))).state is State.WAITING
            assert schedule(redis_client, "fetch")[0] == number
            hasten(redis_client, "e1")
        assert (await made.next(Attempt(await made.claim_of("e1")))).state is State.DONE
    assert plan.ran == ["only"]
    assert not [name for name in record(redis_client, "e1") if name.startswith("p:")]


async def test_handler_that_gives_up_leaves_the_schedule_of_its_sibling(
    redis_url: str, stub: Stub, plan: Planned, redis_client: Redis
) -> None:
    for name in ("declines", "waits"):
        plan.add(name)
    plan.ends = {"declines": GiveUp("closed"), "waits": Retry(after=0.05)}
    async with attempts(redis_url, stub, plan.handlers) as made:
        await event_of(made)
        assert (await made.next()).state is State.WAITING
        assert record(redis_client, "e1")["h:test.declines"] == "dead: closed"
        plan.ends.clear()
        assert (await made.next()).state is State.DEAD
    assert plan.ran == ["declines", "waits", "waits"]
    assert record(redis_client, "e1")["p:test.waits"] == "2 0"


def counts(redis: Redis) -> EventCounts:
    seconds, _ = redis.time()
    return counts_of(store_on(redis), INDEX, now=seconds + 60.0)


async def test_event_is_not_late_while_its_handler_has_chosen_to_wait(
    redis_url: str, stub: Stub, plan: Planned, redis_client: Redis
) -> None:
    plan.add("polls", retries=100)
    plan.ends = {"polls": Retry(after=86_400)}
    async with attempts(redis_url, stub, plan.handlers) as made:
        await event_of(made)
        await made.next()
        waiting = counts(redis_client)
        assert (waiting.open, waiting.retrying, waiting.postponed) == (1, 0, 1)
        assert waiting.oldest_age is None
        await made.accept("e2", COMPLETED, "r2")
        untried = counts(redis_client)
        assert (untried.open, untried.postponed) == (2, 1)
        assert untried.oldest_age == pytest.approx(60, abs=20)


async def test_postponed_event_is_late_once_it_is_due(
    redis_url: str, stub: Stub, plan: Planned, redis_client: Redis
) -> None:
    plan.add("polls", retries=100, backoff=Backoff(first=3_600, longest=3_600))
    plan.ends = {"polls": Retry(after=0.01)}
    async with attempts(redis_url, stub, plan.handlers) as made:
        await event_of(made)
        long_ago = int(record(redis_client, "e1")["received"]) - 86_400_000
        redis_client.hset("credhook:credhook:event:e1", "received", long_ago)
        await made.next()
        plan.ends = {"polls": ValueError()}
        assert (await made.next()).chosen is False
        late = counts(redis_client)
    assert (late.retrying, late.postponed) == (1, 0)
    assert late.oldest_age == pytest.approx(60, abs=20)


async def test_event_with_a_failed_handler_is_late_although_another_has_chosen_to_wait(
    redis_url: str, stub: Stub, plan: Planned, redis_client: Redis
) -> None:
    plan.add("polls")
    plan.add("fails", backoff=Backoff(first=3_600, longest=3_600))
    plan.ends = {"polls": Retry(after=86_400), "fails": ValueError()}
    async with attempts(redis_url, stub, plan.handlers) as made:
        await event_of(made)
        await made.next()
        failing = counts(redis_client)
        assert (failing.retrying, failing.postponed) == (1, 0)
        del plan.ends["fails"]
        redis_client.hset("credhook:credhook:event:e1", mapping={"due": 1, "p:test.fails": "1 0"})
        assert (await made.next(Attempt(await made.claim_of("e1")))).chosen
    assert counts(redis_client).postponed == 1


async def test_chosen_retry_is_shown_as_a_decision(
    redis_url: str, stub: Stub, plan: Planned, redis_client: Redis, events: Run
) -> None:
    plan.add("polls", retries=100)
    plan.ends = {"polls": ValueError()}
    async with attempts(redis_url, stub, plan.handlers) as made:
        await event_of(made)
        await made.next()
        assert [cause.error for cause in causes(store_on(redis_client))[0]] == ["ValueError"]
        plan.ends = {"polls": Retry(after=600, reason="not yet approved")}
        hasten(redis_client, "e1")
        with capture_logs() as logs:
            await made.next(Attempt(await made.claim_of("e1")))
    assert causes(store_on(redis_client))[0] == []
    assert record(redis_client, "e1")["error"] == "test.polls: not yet approved"
    (line,) = (line for line in logs if line["event"] == "retry_chosen")
    assert (line["log_level"], line["reason"], line["attempt"], line["retry_in"]) == (
        "info",
        "not yet approved",
        2,
        600,
    )
    assert {line["event"] for line in logs} == {"retry_chosen", "event_waiting"}
    shown = events("show", "e1").stdout
    assert "test.polls chose to run again: not yet approved, attempt 2, next at " in shown
    assert "\nhandler    test.polls: tried 2 times, next at " in shown


async def test_retry_without_an_attempt_left_is_a_failure_with_its_reason(
    redis_url: str, stub: Stub, plan: Planned, redis_client: Redis
) -> None:
    plan.add("polls", retries=0)
    plan.ends = {"polls": Retry(after=0, reason="not yet approved")}
    async with attempts(redis_url, stub, plan.handlers) as made:
        await event_of(made)
        assert (await made.next()).state is State.DEAD
    assert record(redis_client, "e1")["h:test.polls"] == "dead: not yet approved"
    assert [(cause.error, cause.given_up) for cause in causes(store_on(redis_client))[0]] == [("Retry", 1)]


async def test_attempt_that_comes_early_runs_no_handler(
    redis_url: str, stub: Stub, plan: Planned, redis_client: Redis
) -> None:
    """As after a hand-back of an attempt in which one handler failed and another was broken off."""
    plan.add("waits")
    plan.ends = {"waits": Retry(after=600)}
    async with attempts(redis_url, stub, plan.handlers) as made:
        await event_of(made)
        await made.next()
        due = schedule(redis_client, "test.waits")[1]
        redis_client.hset("credhook:credhook:event:e1", "due", 1)
        settlement = await made.next(Attempt(await made.claim_of("e1")))
    assert (settlement.state, settlement.until) == (State.WAITING, due)
    assert record(redis_client, "e1")["error"] == "test.waits: Retry"
    assert plan.ran == ["waits"]
    assert len(stub.calls) == 1
