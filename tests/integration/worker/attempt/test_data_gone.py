"""Presented data that the platform gives out once: it is handled, or the event says that it is gone."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from credhook.store import State
from credhook.worker.attempt.retry import GiveUp, Retry
from credhook.worker.handlers.registry import Handlers
from support.platform.platform_settings import leading_to
from support.process.commands import credhook
from support.waiting import until_async
from support.worker.attempts import attempts
from support.worker.claiming import EventQueue
from support.worker.fleet_harness import Answer, Call, FleetHarness, Stub, presentation
from support.worker.harness import DATA

VERIFIED = "openid4vc.verification.verified"
KEY = "a-key-of-thirty-two-characters-1"

Platform = Callable[[Call], Answer]


def full(call: Call) -> Answer:
    return presentation(call.resource, {"given": "Ada"})


def empty(call: Call) -> Answer:
    return presentation(call.resource, None)


def unknown(call: Call) -> Answer:
    return Answer(404)


def removed(call: Call) -> Answer:
    return Answer(410)


def first(number: int, then: Platform, before: Platform) -> Platform:
    """The first so many requests of each resource are answered in one way, and all others in another."""
    return lambda call: before(call) if call.number <= number else then(call)


def noting(
    given: list[tuple[str, str]], then: Callable[[Any], Awaitable[None]] = lambda _: asyncio.sleep(0)
) -> Handlers[Any]:
    """A handler that notes webhook-id and name of what it is given, and then does that."""
    handlers = Handlers("test")

    @handlers.on("*")
    async def handle(event: Any, context: Any) -> None:
        given.append((event.webhook_id, (event.details.credentials[0].attributes or {}).get("given", "nothing")))
        await then(event)

    return handlers


async def fails_once(event: Any) -> None:
    if event.attempt == 1:
        raise Retry(after=0.02)


@pytest.mark.parametrize(("kind", "gone"), [(DATA, empty), (VERIFIED, unknown)])
async def test_event_whose_worker_died_has_its_data_or_says_it_is_gone(
    redis_url: str, queue: EventQueue, stub: Stub, kind: str, gone: Platform
) -> None:
    given, stub.answer = list[tuple[str, str]](), first(1, gone, before=full)
    for event_id, keys in (("unkept", {}), ("kept", {"SNAPSHOT_KEY": KEY})):
        async with attempts(redis_url, stub, noting(given, lambda _: asyncio.sleep(600)), **keys) as dies:
            await dies.accept(event_id, kind, f"of-{event_id}")
            attempt = asyncio.create_task(dies.next())
            await until_async(lambda event_id=event_id: (event_id, "Ada") in given)  # type: ignore[misc]
            attempt.cancel()  # It writes nothing more.
            await asyncio.wait({attempt})
    environment = {"REDIS_URL": redis_url, "CREDHOOK_SNAPSHOT_KEY": KEY, **leading_to(stub.url)}
    assert '"given": "redacted"' in credhook("events", "export", "kept", environment=environment).stdout
    queue.lapse()
    assert queue.sweep() == 2
    async with attempts(redis_url, stub, noting(given), SNAPSHOT_KEY=KEY) as made:
        assert {(await made.next()).state, (await made.next()).state} == {State.DONE, State.DATA_GONE}
    assert [queue.record(one)["state"] for one in ("kept", "unkept")] == ["done", "data_gone"]
    assert sorted(given) == [("kept", "Ada"), ("kept", "Ada"), ("unkept", "Ada")]
    assert not queue.redis.keys("credhook:credhook:snapshot:*")


@pytest.mark.parametrize(("kind", "answer", "found", "fetches"), [
    (DATA, first(2, empty, before=first(1, full, before=empty)), "Ada", 2),
    (DATA, first(1, full, before=unknown), "Ada", 2),
    (VERIFIED, empty, "nothing", 2),  # It promises only that data does not go missing between attempts.
])  # fmt: skip
async def test_late_data_costs_the_handler_no_attempt(
    redis_url: str, stub: Stub, kind: str, answer: Platform, found: str, fetches: int
) -> None:
    given, stub.answer = list[tuple[str, str]](), answer
    async with attempts(redis_url, stub, noting(given, fails_once)) as made:
        await made.accept("m1", kind, "pre_1")
        states = list[State]()
        while State.DONE not in states:
            states.append((await made.next()).state)
    assert states == [*[State.WAITING] * (1 if kind == VERIFIED else 2), State.DONE]
    assert given == [("m1", found)] * 2
    assert len(stub.calls) == fetches


def test_one_fetch_serves_both_events_of_a_presentation(rig: FleetHarness) -> None:
    """The second was there before the look, and so needs none of its own, until it is tried again."""
    rig.stub.answer = first(1, empty, before=full)
    rig.plugin("""
@handlers.on("*")
async def handle(event, context):
    note(event.webhook_id, (event.details.credentials[0].attributes or {}).get("given", "nothing"))
    if event.webhook_id == "m2" and event.attempt == 1:
        raise Retry(after=0.1)
""")
    rig.accept(("m1", VERIFIED, "pre_1"), ("m2", DATA, "pre_1"))
    with rig.worker(CREDHOOK_SNAPSHOT_KEY=KEY):
        rig.settles()
    assert [rig.record(one)["state"] for one in ("m1", "m2")] == ["done", "done"]
    assert [note.words for note in rig.notes()] == [("m1", "Ada"), ("m2", "Ada"), ("m2", "Ada")]
    assert not rig.redis.keys("credhook:credhook:snapshot:*")


@pytest.mark.parametrize("kind", [VERIFIED, "openid4vc.verification.requested"])
async def test_fetch_without_data_does_not_serve_the_data_event(redis_url: str, stub: Stub, kind: str) -> None:
    given, stub.answer = list[tuple[str, str]](), first(1, full, before=empty)
    async with attempts(redis_url, stub, noting(given)) as made:
        await made.accept("m1", kind, "pre_1")
        await made.accept("m2", DATA, "pre_1")
        await made.make_two()
    assert given == [("m1", "nothing"), ("m2", "Ada")]


@pytest.mark.parametrize("gone", [empty, unknown, removed])
async def test_second_event_of_a_presentation_finds_data_that_was_readable_once(
    redis_url: str, queue: EventQueue, stub: Stub, gone: Platform
) -> None:
    given, stub.answer = list[tuple[str, str]](), first(1, gone, before=full)
    async with attempts(redis_url, stub, noting(given), SNAPSHOT_KEY=KEY) as earlier:
        for event_id in ("e1", "e2", "e3"):
            await earlier.accept(event_id, DATA, "pre_1")
        assert (await earlier.next()).state is State.DONE
    assert queue.redis.pttl("credhook:credhook:snapshot:pre_1") <= 86_400_000
    for event_id in ("e2", "e3"):  # Each in a process of its own, as after a deploy.
        assert queue.redis.exists("credhook:credhook:snapshot:pre_1")
        queue.redis.zadd("credhook:credhook:open", {event_id: 1})
        queue.sweep()
        async with attempts(redis_url, stub, noting(given), SNAPSHOT_KEY=KEY) as later:
            assert (await later.next()).state is State.DONE
    assert given == [("e1", "Ada"), ("e2", "Ada"), ("e3", "Ada")]
    assert not queue.redis.keys("credhook:credhook:snapshot:*")


async def test_done_event_leaves_the_data_that_a_dead_event_may_need(
    redis_url: str, queue: EventQueue, stub: Stub
) -> None:
    async def give_up_the_first(event: Any) -> None:
        if event.webhook_id == "e1":
            raise GiveUp

    async with attempts(redis_url, stub, noting([], give_up_the_first), SNAPSHOT_KEY=KEY) as made:
        for event_id in ("e1", "e2"):
            await made.accept(event_id, DATA, "pre_1")
        assert [(await made.next()).state for _ in range(2)] == [State.DEAD, State.DONE]
    assert queue.redis.exists("credhook:credhook:snapshot:pre_1")  # For a replay.


async def test_erasure_of_an_event_removes_the_data_of_its_presentation(
    redis_url: str, queue: EventQueue, stub: Stub
) -> None:
    stub.answer = first(1, empty, before=full)
    async with attempts(redis_url, stub, noting([]), SNAPSHOT_KEY=KEY) as made:
        for event_id in ("e1", "e2"):
            await made.accept(event_id, DATA, "pre_1")
        await made.next()
    assert queue.redis.exists("credhook:credhook:snapshot:pre_1")
    queue.erase("e1")
    assert not queue.redis.keys("credhook:credhook:snapshot:*")


async def test_stale_holder_keeps_no_data_of_an_event_accepted_again(
    redis_url: str, queue: EventQueue, stub: Stub
) -> None:
    async with attempts(redis_url, stub, noting([]), SNAPSHOT_KEY=KEY) as made:
        await made.accept("e1", DATA, "pre_1")
        claim = await made.claim()
        queue.erase("e1")
        await made.accept("e1", DATA, "pre_1")
        await made.processor.snapshots.keep("e1", claim.fence, "pre_1", b"{}")
    assert not queue.redis.keys("credhook:credhook:snapshot:*")
    assert "seen" not in queue.record("e1")
