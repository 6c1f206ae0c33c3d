"""Why attempts fail, read from the records: on a real Redis, with real attempts at events."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis

from credhook import GiveUp
from credhook.store import State
from credhook.store.causes import causes, events_with
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.handlers.registry import Handlers
from credhook.worker.queue.claims import Candidates, Settlement
from credhook.worker.queue.failure import WORKER_DIED, Failure
from credhook.worker.queue.leases import reclaim
from support.store.accepting import record
from support.store.stored_events import hasten, plant_many
from support.store.stores import EVENT, INDEX, store_on
from support.worker.attempts import Attempts, attempts
from support.worker.claiming import EventQueue
from support.worker.events_command import Run
from support.worker.fleet_harness import Answer, Stub, well
from support.worker.harness import COMPLETED

handlers = Handlers("test")
#: What is wrong with the handlers, by the event's number modulo five.
BROKEN = {"on": True}


def shared(number: int) -> None:
    if number == 1:
        raise ValueError("nobody may see this")
    if number == 2:
        dict[str, str]()["given"]


@handlers.on("openid4vc.issuance.completed")
async def first(event: Any, context: Any) -> None:
    if BROKEN["on"]:
        shared(int(event.webhook_id[1:]) % 5)


@handlers.on("openid4vc.issuance.completed")
async def second(event: Any, context: Any) -> None:
    if BROKEN["on"] and int(event.webhook_id[1:]) % 5 in {2, 3}:
        raise GiveUp(f"no account for {event.webhook_id}")


@pytest.fixture
def stub(stub: Stub) -> Stub:
    BROKEN["on"] = True
    return stub


@pytest.fixture
async def made(stub: Stub, redis_url: str) -> AsyncIterator[Attempts]:
    async with attempts(redis_url, stub, handlers, MAX_ATTEMPTS=1) as made:
        yield made


def standing(redis: Redis) -> dict[tuple[str, str], set[str]]:
    """Who and what → the events that have the cause now."""
    store = store_on(redis)
    listed, complete = causes(store)
    assert complete
    return {(cause.handler, cause.error): set(events_with(store, cause.id)) for cause in listed}


async def test_replay_resolves_causes_until_the_handler_fails_again(
    made: Attempts, redis_client: Redis, events: Run
) -> None:
    for number in range(5):
        await made.accept(f"e{number}", COMPLETED, f"r{number}")
    for _ in range(5):
        await made.next()
    failed = {("test.first", "ValueError"): {"e1"}, ("test.first", "KeyError"): {"e2"}}
    assert standing(redis_client) == failed | {("test.second", "GiveUp"): {"e2", "e3"}}
    (cause,) = [cause for cause in causes(store_on(redis_client))[0] if cause.error == "ValueError"]
    assert (cause.open, cause.given_up) == (0, 1)
    assert events("replay", "--state", "dead").stdout == "replayed 3\n"
    assert standing(redis_client) == {}
    await made.next()
    assert standing(redis_client) == {("test.first", "ValueError"): {"e1"}}
    BROKEN["on"] = False
    assert events("replay", "e1").stdout == "replayed 1\n"
    for _ in range(3):
        await made.next()
    assert standing(redis_client) == {}
    assert not [field for field in record(redis_client, "e1") if field.startswith("c:")]


async def test_handler_still_given_up_keeps_its_cause(made: Attempts, redis_client: Redis, events: Run) -> None:
    await made.accept("e2", COMPLETED, "r2")
    await made.next()
    assert events("replay", "e2", "--handler", "test.first").stdout.endswith("replayed 1\n")
    assert standing(redis_client) == {("test.second", "GiveUp"): {"e2"}}
    (cause,) = causes(store_on(redis_client))[0]
    assert (cause.open, cause.given_up) == (1, 0)
    BROKEN["on"] = False
    assert (await made.next()).state is State.DEAD
    assert standing(redis_client) == {("test.second", "GiveUp"): {"e2"}}


async def test_event_goes_from_cause_to_cause_until_done(stub: Stub, redis_url: str, redis_client: Redis) -> None:
    stub.answer = lambda call: Answer(503) if call.number <= 2 else well(call)
    async with attempts(redis_url, stub, handlers) as made:
        await made.accept("e1", COMPLETED, "r1")
        assert (await made.next()).state is State.WAITING
        seen = [standing(redis_client)]
        for state in (State.WAITING, State.WAITING, State.DONE):
            BROKEN["on"] = state is State.WAITING
            hasten(redis_client, "e1")
            assert (await made.next(Attempt(await made.claim_of("e1")))).state is state
            seen.append(standing(redis_client))
    fetch, handler = {("fetch", "Unavailable 503"): {"e1"}}, {("test.first", "ValueError"): {"e1"}}
    assert seen == [fetch, fetch, handler, {}]


@pytest.mark.parametrize(("deaths", "state", "left"), [(1, State.DONE, set()), (2, State.DEAD, {"e0"})])
async def test_death_of_a_worker_is_a_cause_until_the_event_is_done(
    stub: Stub, redis_url: str, queue: EventQueue, deaths: int, state: State, left: set[str]
) -> None:
    """One attempt is allowed, and a death spends none."""
    async with attempts(redis_url, stub, handlers, MAX_ATTEMPTS=1) as made:
        await made.accept("e0", COMPLETED, "r0")
        assert len(await queue.take("w")) == 1
        assert reclaim(store_on(queue.redis), "w", "own")
        assert standing(queue.redis) == {("worker", "WorkerDied"): {"e0"}}
        assert not await queue.take("w")
        for _ in range(1, deaths):
            assert len(await queue.take("w", candidates=Candidates.ONLY)) == 1
            assert reclaim(store_on(queue.redis), "w", "own")
            assert not await queue.take("w")
        (claim,) = await queue.take("w", candidates=Candidates.ONLY)
        assert claim.causes == {"worker": WORKER_DIED.cause}
        assert (await made.next(Attempt(claim))).state is state
    assert standing(queue.redis).get(("worker", "WorkerDied"), set()) == left


def failed(*failures: Failure, state: State = State.DEAD, **more: Any) -> Settlement:
    """Return a settlement with these failures as its open errors."""
    return Settlement(state, "no", failures=failures, causes={each.who: each.cause for each in failures}, **more)


@pytest.mark.parametrize("before", ["", "KeyError", "GiveUp"])
async def test_handler_that_gives_up_has_its_cause_before_the_settlement(queue: EventQueue, before: str) -> None:
    """The process may die before the event is settled, and no worker runs that handler again."""
    await queue.accept("e0")
    claim, failure = await queue.take_one(), Failure("test.second", "GiveUp")
    if before:  # The handler had failed so at an earlier attempt.
        queue.redis.hset(EVENT + "e0", "c:test.second", Failure("test.second", before).cause)
    for _ in range(2):  # The reply to the first was lost.
        await queue.worker().record(claim, "test.second", "dead: no account", failure=failure)
    assert reclaim(store_on(queue.redis), "w", "host")
    assert standing(queue.redis) == {("test.second", "GiveUp"): {"e0"}}
    assert (await queue.claim("e0")).causes == {"test.second": failure.cause}


async def test_cause_is_described_once_with_texts_that_are_cut(queue: EventQueue) -> None:
    await queue.accept("e0", "e1")
    failure = Failure("x" * 300, "Y" * 300, at="z" * 300)
    for number in range(2):
        await queue.worker().settle(await queue.take_one(), failed(failure))
        queue.redis.hset(INDEX.cause + failure.cause, "first", 1_000 + number)
    (cause,) = causes(store_on(queue.redis))[0]
    assert (cause.handler, cause.error, cause.at, cause.given_up) == ("x" * 200, "Y" * 200, "z" * 200, 2)
    assert (cause.first, cause.version[:8]) == ("1970-01-01T00:00:01.001Z", "credhook")
    queue.redis.delete(INDEX.cause + failure.cause)  # As after its expiry: the records name it still.
    (cause,) = causes(store_on(queue.redis))[0]
    assert (cause.id, cause.first, cause.given_up) == (failure.cause, None, 2)


async def test_causes_are_counted_among_the_latest_events(queue: EventQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credhook.store.causes.READ_LIMIT", 500)
    plant_many(queue.redis, 600, State.DEAD, causes={"a.bad": "0badc0de"})
    ((cause,), complete) = causes(store_on(queue.redis))
    assert (cause.given_up, complete) == (500, False)
    assert len(events_with(store_on(queue.redis), "0badc0de")) == 600


async def test_cause_of_a_failing_event_changes_with_its_error_alone(queue: EventQueue) -> None:
    await queue.accept("e1")
    before, after = Failure("a.bad", "ValueError"), Failure("a.bad", "TypeError")
    await queue.worker().settle(await queue.take_one(), failed(before, state=State.WAITING))
    again = await queue.claim("e1")
    await queue.worker().settle(again, Settlement(State.WAITING, "no", causes=again.causes))
    assert standing(queue.redis) == {("a.bad", "ValueError"): {"e1"}}
    await queue.worker().settle(await queue.claim("e1"), failed(after))
    assert standing(queue.redis) == {("a.bad", "TypeError"): {"e1"}}
