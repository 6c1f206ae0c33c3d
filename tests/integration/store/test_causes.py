"""Why attempts fail, counted as it happens: on a real Redis, with real attempts at events."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis

from credhook import GiveUp
from credhook.store import MOST_CAUSES, State
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.handlers.registry import Handlers
from credhook.worker.queue.claims import Settlement
from credhook.worker.queue.failure import WORKER_DIED, Failure
from credhook.worker.queue.leases import reclaim
from support.store.accepting import record
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


def causes(redis: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Who and what → what is counted of it, and which events stand with it."""
    found = {}
    for one in redis.zrange(INDEX.causes, 0, -1):
        cause = {name.decode(): value.decode() for name, value in redis.hgetall(INDEX.cause(one.decode())).items()}
        standing = redis.zrange(INDEX.standing(one.decode()), 0, -1)
        found[cause["who"], cause["what"]] = {**cause, "id": one.decode(), "standing": {e.decode() for e in standing}}
    return found


async def test_a_replay_empties_causes_and_failures_come_back(made: Attempts, redis_client: Redis, events: Run) -> None:
    for number in range(5):
        await made.accept(f"e{number}", COMPLETED, f"r{number}")
    for _ in range(5):
        await made.next()
    assert events("replay", "--state", "dead").stdout == "replayed 3\n"
    assert [one["standing"] for one in causes(redis_client).values()] == [set()] * 3
    for one in causes(redis_client).values():
        redis_client.hset(INDEX.cause(one["id"]), "since", "0.1.0")
    await made.next()
    found = causes(redis_client)
    assert [found["test.first", "ValueError"][name] for name in ("failures", "standing")] == ["2", {"e1"}]
    assert [found["test.first", "ValueError"][name][:8] for name in ("since", "version")] == ["0.1.0", "credhook"]
    BROKEN["on"] = False
    await made.next()
    await made.next()
    assert events("replay", "--id", "e1").stdout == "replayed 1\n"
    await made.next()
    found = causes(redis_client)
    assert {name: (one["failures"], one["standing"]) for name, one in found.items()} == {
        ("test.first", "ValueError"): ("2", set()),
        ("test.first", "KeyError"): ("1", set()),
        ("test.second", "GiveUp"): ("2", set()),
    }
    assert not [field for field in record(redis_client, "e1") if field.startswith("c:")]


async def test_a_handler_still_given_up_keeps_its_cause(made: Attempts, redis_client: Redis, events: Run) -> None:
    await made.accept("e2", COMPLETED, "r2")
    await made.next()
    assert events("replay", "--id", "e2", "--handler", "test.first").stdout.endswith("replayed 1\n")
    found = causes(redis_client)
    assert found["test.second", "GiveUp"]["standing"] == {"e2"}
    assert found["test.first", "KeyError"]["standing"] == set()
    assert (redis_client.zscore(INDEX.standing(found["test.second", "GiveUp"]["id"]), "e2") or 0) < 0
    BROKEN["on"] = False
    assert (await made.next()).state is State.DEAD
    assert causes(redis_client)["test.second", "GiveUp"]["standing"] == {"e2"}


async def test_an_event_goes_from_cause_to_cause_until_done(stub: Stub, redis_url: str, redis_client: Redis) -> None:
    stub.answer = lambda call: Answer(503) if call.number <= 2 else well(call)
    async with attempts(redis_url, stub, handlers) as made:
        await made.accept("e1", COMPLETED, "r1")
        assert (await made.next()).state is State.WAITING
        (fetch,) = causes(redis_client).values()
        assert (fetch["who"], fetch["what"], fetch["standing"]) == ("fetch", "Unavailable 503", {"e1"})
        for state in (State.WAITING, State.WAITING, State.DONE):
            redis_client.hset(EVENT + "e1", "due", 1)
            BROKEN["on"] = state is State.WAITING
            claim = await made.claim_of("e1")
            assert (await made.next(Attempt(claim))).state is state
        found = causes(redis_client)
    assert found["fetch", "Unavailable 503"]["failures"] == "2"
    assert found["test.first", "ValueError"]["failures"] == "1"
    assert [one["standing"] for one in found.values()] == [set()] * 2


@pytest.mark.parametrize(("most", "state", "left"), [(12, State.DONE, set()), (1, State.DEAD, {"e0"})])
async def test_deaths_of_workers_are_a_cause_until_the_event_is_done(
    stub: Stub, redis_url: str, queue: EventQueue, most: int, state: State, left: set[str]
) -> None:
    async with attempts(redis_url, stub, handlers, MAX_ATTEMPTS=most) as made:
        await made.accept("e0", COMPLETED, "r0")
        assert len(await queue.take("w")) == 1
        assert reclaim(store_on(queue.redis), "w", "1")
        found = causes(queue.redis)["worker", "WorkerDied"]
        assert (found["failures"], found["standing"]) == ("1", {"e0"})
        assert not await queue.take("w")
        (claim,) = await queue.take("w", idle=True)
        assert claim.causes == {"worker": WORKER_DIED.cause}
        assert (await made.next(Attempt(claim))).state is state
    found = causes(queue.redis)["worker", "WorkerDied"]
    assert (found["failures"], found["standing"]) == ("1", left)


def failed(*failures: Failure, state: State = State.DEAD, **more: Any) -> Settlement:
    """Return a settlement with these failures as its open errors."""
    return Settlement(state, "no", failures=failures, causes={each.who: each.cause for each in failures}, **more)


async def test_a_settlement_that_is_written_twice_is_counted_once(queue: EventQueue) -> None:
    await queue.accept("e0")
    claim, settlement = await queue.take_one(), failed(Failure("test.first", "ValueError", "test first"))
    for _ in range(2):  # The reply to the first was lost.
        assert (await queue.worker().settle(claim, settlement))[0]
    assert causes(queue.redis)["test.first", "ValueError"]["failures"] == "1"


@pytest.mark.parametrize("before", ["", "KeyError", "GiveUp"])
async def test_a_handler_that_gives_up_is_counted_at_once_and_once(queue: EventQueue, before: str) -> None:
    """The process may die before the event is settled, and no worker runs that handler again."""
    await queue.accept("e0")
    claim, failure = await queue.take_one(), Failure("test.second", "GiveUp")
    if before:  # The handler had failed so at an earlier attempt.
        queue.redis.hset(EVENT + "e0", "c:test.second", Failure("test.second", before).cause)
        queue.redis.zadd(INDEX.standing(Failure("test.second", before).cause), {"e0": -1})
    for _ in range(2):  # The reply to the first was lost.
        await queue.worker().record(claim, "test.second", "dead: no account", failure=failure)
    assert reclaim(store_on(queue.redis), "w", "host")
    found = causes(queue.redis)["test.second", "GiveUp"]
    assert (found["failures"], found["standing"]) == ("1", {"e0"})
    assert queue.redis.keys(INDEX.standing("*")) == [INDEX.standing(failure.cause).encode()]
    assert (await queue.claim("e0")).causes == {"test.second": failure.cause}


async def test_the_sweeper_removes_the_entries_of_a_cause_that_no_record_confirms(queue: EventQueue) -> None:
    await queue.accept("e0")
    failure = Failure("a.bad", "ValueError")
    queue.redis.zadd(INDEX.standing(failure.cause), {"done": -1, "done long ago": -1, "expired": 1, "other": 1})
    queue.redis.hset(EVENT + "other", mapping={"state": "dead", "c:a.bad": "another"})
    queue.redis.hset(EVENT + "done", mapping={"state": "done", "c:a.bad": failure.cause})
    yesterday = (queue.redis.time()[0] - 86_400) * 1_000
    queue.redis.zadd(INDEX.causes, {"silent for more than a week": 1, "silent for a day": yesterday})
    await queue.worker().settle(await queue.take_one(), failed(failure))
    assert queue.redis.zrange(INDEX.causes, 0, -1) == [b"silent for a day", failure.cause.encode()]
    queue.sweep()
    assert queue.redis.zrange(INDEX.standing(failure.cause), 0, -1) == [b"e0"]


async def test_causes_are_bounded_and_the_longest_silent_go(queue: EventQueue) -> None:
    pipeline = queue.redis.pipeline(transaction=False)
    now = queue.redis.time()[0] * 1_000
    for number in range(MOST_CAUSES):
        pipeline.zadd(INDEX.causes, {f"{number:08}": now - 10_000 + number})
        pipeline.hset(INDEX.cause(f"{number:08}"), "who", "a.bad")
        pipeline.zadd(INDEX.standing(f"{number:08}"), {"e1": 1})
    pipeline.execute()
    await queue.accept("e0")
    failure = Failure("x" * 300, "Y" * 300)
    await queue.worker().settle(await queue.take_one(), failed(failure))
    assert queue.redis.zcard(INDEX.causes) == MOST_CAUSES
    assert queue.redis.exists(INDEX.cause("00000000"), INDEX.standing("00000000")) == 0
    assert queue.redis.exists(INDEX.cause("00000001"), INDEX.standing("00000001")) == 2
    assert (queue.redis.hget(INDEX.cause(failure.cause), "who"), failure.history()["what"]) == (b"x" * 200, "Y" * 200)


async def test_a_failing_event_keeps_its_cause_when_deferred_and_changes_it_with_the_error(queue: EventQueue) -> None:
    await queue.accept("e1")
    before, after = Failure("a.bad", "ValueError"), Failure("a.bad", "TypeError")
    await queue.worker().settle(await queue.take_one(), failed(before, state=State.WAITING))
    again = await queue.claim("e1")
    await queue.worker().settle(again, Settlement(State.WAITING, "no", causes=again.causes))
    assert causes(queue.redis)["a.bad", "ValueError"]["failures"] == "1"
    assert queue.redis.zrange(INDEX.standing(before.cause), 0, -1) == [b"e1"]
    await queue.worker().settle(await queue.claim("e1"), failed(after, resolved={"a.bad": before.cause}))
    assert queue.record("e1")["c:a.bad"] == after.cause
    assert queue.redis.zrange(INDEX.standing(before.cause), 0, -1) == []
    assert queue.redis.zrange(INDEX.standing(after.cause), 0, -1) == [b"e1"]
