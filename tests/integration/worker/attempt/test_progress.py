"""`context.progress`: what a handler saves, and its next attempt finds. A real Redis, a stub of the platform."""

import asyncio
import json
from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from credhook import Backoff, GiveUp
from credhook.store import State
from credhook.worker.attempt.attempt import Attempt
from support.store.accepting import everything, record
from support.store.stores import EVENT
from support.worker.attempts import Attempts, Planned, attempts
from support.worker.fleet_harness import Stub

DATA = "openid4vc.verification.data"
KEY, OTHER_KEY = "old-key-of-thirty-two-characters", "new-key-of-thirty-two-characters"


class Steps(Planned):
    """A handler that saves each step, and fails after it until it has made enough."""

    def __init__(self, enough: int = 2, *, in_thread: bool = False) -> None:
        super().__init__()
        self.enough = enough
        #: What each attempt has found.
        self.found: list[Any] = []
        again: Any = {"backoff": Backoff(first=0.01, longest=0.01), "name": "steps"}
        self.handlers.on("*", **again)(self.in_thread if in_thread else self.on_loop)

    async def on_loop(self, event: Any, context: Any) -> None:
        await context.progress.save({"step": self.step(context)})
        self.end(context)

    def in_thread(self, event: Any, context: Any) -> None:
        context.progress.save({"step": self.step(context)})
        self.end(context)

    def step(self, context: Any) -> int:
        self.found.append(context.progress.value)
        number: int = (context.progress.value or {"step": 0})["step"] + 1
        return number

    def end(self, context: Any) -> None:
        if context.progress.value["step"] < self.enough:
            raise ConnectionError


async def second_attempt(made: Attempts) -> State:
    settlement = await made.next(Attempt(await made.claim_of("e1")))
    return settlement.state


@pytest.mark.parametrize("in_thread", [False, True])
async def test_next_attempt_finds_what_was_saved(
    redis_url: str, redis_client: Redis, stub: Stub, *, in_thread: bool
) -> None:
    steps = Steps(in_thread=in_thread)
    async with attempts(redis_url, stub, steps.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        assert (await made.next()).state is State.WAITING
        assert record(redis_client, "e1")["g:test.steps"] == '{"step":1}'
        assert await second_attempt(made) is State.DONE
    assert steps.found == [None, {"step": 1}]
    assert not [field for field in record(redis_client, "e1") if field.startswith("g:")]


async def test_progress_outlives_the_process(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    """A worker that dies settles nothing: its lease lapses."""
    steps = Steps(enough=9)
    async with attempts(redis_url, stub, steps.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        claim = await made.claim()
        await made.claims.save_progress(claim, "test.steps", '{"step": 8}')
    redis_client.zadd("credhook:credhook:leases", {"e1": 1})
    async with attempts(redis_url, stub, steps.handlers) as other:
        assert await second_attempt(other) is State.DONE
    assert steps.found == [{"step": 8}]


@pytest.mark.parametrize(("keys", "found", "warnings"), [
    (f"{OTHER_KEY} {KEY}", {"step": 1}, []),
    (OTHER_KEY, None, ["progress_unreadable"]),
    ("", None, ["progress_unreadable"]),
])  # fmt: skip
async def test_progress_is_sealed_if_there_is_a_key(
    redis_url: str, redis_client: Redis, stub: Stub, keys: str, found: Any, warnings: list[str]
) -> None:
    steps = Steps()
    async with attempts(redis_url, stub, steps.handlers, SNAPSHOT_KEY=KEY) as made:
        await made.accept("e1", DATA, "pre_1")
        await made.next()
    assert '"step"' not in everything(redis_client)
    async with attempts(redis_url, stub, steps.handlers, SNAPSHOT_KEY=keys) as made:
        with capture_logs() as lines:
            await second_attempt(made)
        assert [line["event"] for line in lines if line["event"] == "progress_unreadable"] == warnings
    assert steps.found == [None, found]


async def test_sealed_progress_opens_for_no_other_event(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    steps = Steps()
    async with attempts(redis_url, stub, steps.handlers, SNAPSHOT_KEY=KEY) as made:
        await made.accept("e1", DATA, "pre_1")
        await made.next()
        await made.accept("e2", DATA, "pre_2")
        redis_client.hset(EVENT + "e2", "g:test.steps", record(redis_client, "e1")["g:test.steps"])
        await made.next(Attempt(await made.claim_of("e2")))
    assert steps.found == [None, None]


async def test_progress_saved_without_a_key_is_found_with_one(redis_url: str, stub: Stub) -> None:
    steps = Steps()
    async with attempts(redis_url, stub, steps.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        await made.next()
    async with attempts(redis_url, stub, steps.handlers, SNAPSHOT_KEY=KEY) as made:
        assert await second_attempt(made) is State.DONE
    assert steps.found == [None, {"step": 1}]


async def test_progress_goes_when_the_event_is_given_up(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    plan = Planned("other")
    plan.ends["other"] = GiveUp("closed")

    @plan.handlers.on("*")  # type: ignore[untyped-decorator]
    async def saves(event: Any, context: Any) -> None:
        await context.progress.save(7)
        raise GiveUp("closed")

    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        assert (await made.next()).state is State.DEAD
    assert not [field for field in record(redis_client, "e1") if field.startswith("g:")]


async def test_lost_claim_saves_nothing(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    errors: list[str] = []
    plan = Planned()

    @plan.handlers.on("*")  # type: ignore[untyped-decorator]
    async def saves(event: Any, context: Any) -> None:
        await asyncio.to_thread(redis_client.hdel, "credhook:credhook:locks", "pre_1")  # As if another had it.
        try:
            await context.progress.save(7)
        except RuntimeError as error:
            errors.append(str(error))

    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        await made.make(Attempt(await made.claim()))
    assert errors == ["progress not saved: this worker no longer has the event"]
    assert "g:test.saves" not in record(redis_client, "e1")


@pytest.mark.parametrize(("value", "message"), [
    ("x" * 8_191, "progress of 8,193 bytes of JSON: save 8,192 at most"),
    ({"at": object()}, "Object of type object is not JSON serializable"),
    (float("nan"), "Out of range float values are not JSON compliant"),
])  # fmt: skip
async def test_progress_is_a_small_json_value(redis_url: str, stub: Stub, value: Any, message: str) -> None:
    errors: list[str] = []
    plan = Planned()

    @plan.handlers.on("*")  # type: ignore[untyped-decorator]
    async def saves(event: Any, context: Any) -> None:
        await context.progress.save("x" * 8_190)
        try:
            await context.progress.save(value)
        except (TypeError, ValueError) as error:
            errors.append(str(error))
        assert context.progress.value == "x" * 8_190
        assert "xxx" not in repr(context)

    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        assert (await made.next()).state is State.DONE
    assert [error.startswith(message) for error in errors] == [True]


async def test_call_that_lacks_its_await_fails_the_handler(redis_url: str, stub: Stub) -> None:
    plan = Planned()

    @plan.handlers.on("*")  # type: ignore[untyped-decorator]
    async def saves(event: Any, context: Any) -> None:
        await asyncio.sleep(0)
        context.progress.save(json.loads("7"))

    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        with pytest.warns(RuntimeWarning, match=r"context\.progress\.save"):
            await made.next()
