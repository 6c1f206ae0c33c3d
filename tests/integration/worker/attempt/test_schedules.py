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
from credhook.worker.attempt.attempt import Attempt
from support.store.accepting import record
from support.store.stored_events import hasten
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
    attempts_spent, due = record(redis, "e1")[f"p:{name}"].split()
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
