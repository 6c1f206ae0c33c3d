"""Events that a worker has no handler for are kept, shown, and put back for the first worker that has one."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from credhook.backoff import Backoff
from credhook.store import State
from credhook.store.replay import Replay, Settled
from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.attempt.retry import GiveUp, Retry
from credhook.worker.queue import unhandled
from credhook.worker.queue.sweeper import Sweeper
from credhook.worker.queue.unhandled import Unhandled
from support.store.accepting import accept, record
from support.store.stored_events import plant
from support.store.stores import EVENT, INDEX, job_id, store_on
from support.waiting import until_async
from support.worker.attempts import Attempts, Planned, attempts
from support.worker.events_command import Run
from support.worker.fleet_harness import Stub

COMPLETED, OFFERED, FAILED = (f"openid4vc.issuance.{one}" for one in ("completed", "offered", "failed"))
#: What a worker wants that has come with the handler.
NEW: Mapping[str, tuple[str, ...]] = {COMPLETED: ("new.handle",), OFFERED: ("new.handle", "new.look")}


class Fleet(Planned):
    """Workers on one queue, which has the event `m1`."""

    def __init__(self, redis: Redis, redis_url: str, stub: Stub) -> None:
        super().__init__()
        self.redis, self._url, self.stub = redis, redis_url, stub

    def worker(
        self, *names: str, on: str = COMPLETED, options: Mapping[str, Any] = MappingProxyType({}), **settings: Any
    ) -> AbstractAsyncContextManager[Attempts]:
        """Return a worker with the handlers of these names, as `make` has them."""
        return attempts(self._url, self.stub, self.make(*names, on=on, options=options), **settings)

    def put_back(self, *names: str) -> int:
        """Put back the events that a worker with these handlers can handle, and return their number."""
        wanted = {COMPLETED: tuple(f"test.{name}" for name in names)}
        return Unhandled(store_on(self.redis), wanted=wanted).put_back()

    def replay(self, event: Settled, handler: str = "") -> None:
        assert Replay(store_on(self.redis))([event], handler=handler, types=[COMPLETED]) == [b"replayed"]

    def record(self) -> dict[str, str]:
        return record(self.redis, "m1")

    def awaited(self) -> set[str]:
        """The handlers that the event has not ended with."""
        kept = self.record()
        return {name[2:] for name in kept if name.startswith("p:") and "h:" + name[2:] not in kept}


@pytest.fixture
def fleet(redis_client: Redis, redis_url: str, stub: Stub) -> Fleet:
    accept(redis_url, "m1", COMPLETED, "r1")
    return Fleet(redis_client, redis_url, stub)


async def test_event_without_a_handler_waits_for_a_worker_that_has_one(
    fleet: Fleet,
) -> None:
    async with fleet.worker("a", on=FAILED) as old, fleet.worker("a") as new:
        with capture_logs() as logs:
            assert (await old.next()).state is State.UNHANDLED
        (line,) = [line for line in logs if line["event"].startswith("event_")]
        assert (line["event"], line["log_level"], line["lacking"]) == ("event_unhandled", "warning", "any")
        assert not fleet.stub.calls
        kept = fleet.record()
        assert (kept["state"], kept["error"], fleet.awaited()) == ("unhandled", "NoHandler", set())
        assert 0 < fleet.redis.ttl(EVENT + "m1") <= 604_800
        assert fleet.redis.zrange(INDEX.unhandled + COMPLETED, 0, -1) == [b"m1"]
        for key in (INDEX.open, INDEX.leases, INDEX.dead, INDEX.locks, "rq:job:" + job_id("m1")):
            assert not fleet.redis.exists(key)
        assert fleet.put_back("a") == 1
        assert fleet.redis.ttl(EVENT + "m1") == -1
        assert (await new.next()).state is State.DONE
    assert fleet.ran == ["a"]
    assert not fleet.redis.exists(INDEX.unhandled + COMPLETED)
    assert not any(name.startswith("p:") for name in fleet.record())


async def test_passing_between_workers_spends_no_attempt(fleet: Fleet) -> None:
    """More often than an event has attempts, after one that failed; and its progress is still known."""
    fleet.ends["b"] = Retry(after=0.01)
    async with fleet.worker("a", "b") as new, fleet.worker("a", on=FAILED) as old:
        assert (await new.next()).state is State.WAITING
        for _ in range(15):
            assert (await old.next()).state is State.UNHANDLED
            assert fleet.put_back("a", "b") == 1
        fleet.ends.clear()
        attempt = Attempt(await new.claim())
        assert attempt.claim.attempt("test.b") == 2
        assert (await new.next(attempt)).state is State.DONE
    assert fleet.ran == ["a", "b", "b"]


async def drained(fleet: Fleet, worker: Attempts) -> None:
    """Let a drain break off b while it runs."""
    fleet.gates["b"] = asyncio.Event()
    attempt = Attempt(await worker.claim())
    trial = asyncio.create_task(worker.make(attempt))
    await until_async(lambda: "h:test.a" in fleet.record(), what="the end of a")
    assert fleet.awaited() == {"test.b"}  # For the next worker, should this one be killed.
    attempt.interrupt(Interruption.DRAINED)
    await trial
    fleet.gates.clear()


async def retried(fleet: Fleet, worker: Attempts) -> None:
    """Let b ask for another attempt."""
    fleet.ends["b"] = Retry(after=0.01)
    assert (await worker.next()).state is State.WAITING
    assert fleet.awaited() == {"test.b"}


async def given_up(fleet: Fleet, worker: Attempts, handler: str = "") -> None:
    """Let b give up, and replay the event."""
    fleet.ends["b"] = GiveUp("closed")
    assert (await worker.next()).state is State.DEAD
    fleet.replay(Settled("m1", "dead"), handler)


@pytest.mark.parametrize("old_type", [COMPLETED, FAILED])
@pytest.mark.parametrize("begin", [drained, retried, given_up, partial(given_up, handler="test.b")])
async def test_event_waits_for_the_handler_that_has_not_ended(
    fleet: Fleet, begin: Callable[[Fleet, Attempts], Coroutine[Any, Any, None]], old_type: str
) -> None:
    """The old worker has another handler for the type, or none."""
    async with fleet.worker("a", "b") as new, fleet.worker("a", on=old_type) as old:
        await begin(fleet, new)
        assert (await old.next()).state is State.UNHANDLED
        assert fleet.awaited() == {"test.b"}
        with capture_logs() as logs:
            assert fleet.put_back("a") == 0
        assert logs == []
        fleet.replay(Settled("m1", "unhandled"))  # An operator replays all unhandled events.
        assert (await old.next()).state is State.UNHANDLED
        with capture_logs() as logs:
            assert fleet.put_back("a", "b") == 1
        assert [(line["event"], line["count"]) for line in logs] == [("unhandled_put_back", 1)]
        fleet.ends.clear()
        assert (await new.next()).state is State.DONE
    assert fleet.ran == ["a", "b", "b"]
    assert fleet.awaited() == set()


@pytest.mark.parametrize("begin", [drained, retried, given_up])
async def test_replay_lets_renamed_handlers_run(
    fleet: Fleet, events: Run, begin: Callable[[Fleet, Attempts], Coroutine[Any, Any, None]]
) -> None:
    async with fleet.worker("a", "b") as old, fleet.worker("a", "c") as new:
        await begin(fleet, old)
        with capture_logs() as logs:
            assert (await new.next()).state is State.UNHANDLED
        (said,) = [line for line in logs if line["event"] == "event_unhandled"]
        assert said["lacking"] == ["test.b"]
        assert said["hint"].startswith("It waits for a handler of this name. If renamed: credhook events replay ")
        command = said["hint"].partition("credhook events ")[2].split()
        assert events(*command, "--now").exit_code == 2
        assert events(*command).stdout == "replayed 1\n"
        assert (await new.next()).state is State.DONE
    assert events("replay", "--renamed", "m1").exit_code == 2  # It is done: whether all are to run is asked.
    assert fleet.ran == ["a", "b", "c"]
    assert "with renamed handlers" in events("show", "m1").stdout


async def test_event_awaits_another_workers_handler_during_retries(fleet: Fleet) -> None:
    fleet.ends = {"a": Retry(after=0.01), "b": Retry(after=0.01)}
    async with fleet.worker("a", "b") as both, fleet.worker("b") as one:
        assert [(await worker.next()).state for worker in (both, one)] == [State.WAITING] * 2
        fleet.ends.clear()
        assert (await one.next()).state is State.UNHANDLED
    assert fleet.awaited() == {"test.a"}


async def test_worker_that_lacks_the_handler_gives_nothing_up_for_it(fleet: Fleet) -> None:
    """Neither for the attempts that the handler has left, nor for another handler that was given up."""
    fleet.ends = {"a": GiveUp("closed"), "b": ValueError()}
    stubborn = {"b": {"retries": 50, "backoff": Backoff(first=0.001, longest=0.001)}}
    async with (
        fleet.worker("a", "b", options=stubborn, MAX_ATTEMPTS=2) as new,
        fleet.worker("a", MAX_ATTEMPTS=2) as old,
    ):
        assert [(await new.next()).state for _ in range(3)] == [State.WAITING] * 3
        assert (await old.next()).state is State.UNHANDLED
        fleet.ends.clear()
        assert fleet.put_back("a", "b") == 1
        assert (await new.next()).state is State.DEAD
    assert fleet.ran == ["a", "b", "b", "b", "b"]


# A handler that has come later catches up with events that were done, and no other handler runs again.


async def done_without(fleet: Fleet, name: str) -> None:
    """Finish an event with the handler `a`, and ask for the handler `name` to catch up."""
    async with fleet.worker("a") as before:
        assert (await before.next()).state is State.DONE
    fleet.replay(Settled("m1", "done"), f"test.{name}")


@pytest.mark.parametrize("ends", [{State.DONE: None}, {State.WAITING: Retry(after=0.01), State.DEAD: GiveUp("no")}])
async def test_late_handler_runs_and_gives_up_alone(fleet: Fleet, ends: dict[State, Exception | None]) -> None:
    await done_without(fleet, "b")
    async with fleet.worker("a", "b", "c") as made:
        for state, end in ends.items():
            assert fleet.record()["only"] == "test.b"
            fleet.ends = {"b": end} if end else {}
            assert (await made.next()).state is state
    assert fleet.ran == ["a", *["b"] * len(ends)]
    assert {name for name in fleet.record() if name.startswith("h:")} == {"h:test.a", "h:test.b"}


async def test_worker_without_the_late_handler_leaves_it_to_another(fleet: Fleet) -> None:
    await done_without(fleet, "b")
    async with fleet.worker("a", "c") as old, fleet.worker("a", "b", "c") as new:
        assert (await old.next()).state is State.UNHANDLED
        assert fleet.record()["only"] == "test.b"
        assert (fleet.put_back("a", "c"), fleet.put_back("a", "b", "c")) == (0, 1)
        assert (await new.next()).state is State.DONE
    assert fleet.ran == ["a", "b"]


async def test_late_handler_does_not_wait_for_a_handler_that_is_gone(fleet: Fleet) -> None:
    await done_without(fleet, "a")
    async with fleet.worker("c", "a", options={"a": {"after": "c"}}) as after:
        assert (await after.next()).state is State.DONE
    assert fleet.ran == ["a", "a"]


def test_unhandled_events_return_in_the_order_of_receipt(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unhandled, "PAGE", 4)
    monkeypatch.setattr(unhandled, "BATCH", 3)
    for number in range(12):  # Of one type there are more than of the other.
        kind = COMPLETED if number % 3 else OFFERED
        plant(redis_client, f"m{number:02}", State.UNHANDLED, kind, age=100 - number, error="NoHandler")
        redis_client.zadd(INDEX.unhandled + kind, {f"m{number:02}": number})
    redis_client.hset(EVENT + "m05", "p:fetch", "2 0")  # Its fetch has failed before.
    plant(redis_client, "unwanted", State.UNHANDLED, FAILED)
    worker = Unhandled(store_on(redis_client), wanted=NEW)
    assert [worker.put_back() for _ in range(3)] == [8, 4, 0]
    jobs: Any = redis_client.lrange(INDEX.jobs, 0, -1)
    assert (jobs[:8], jobs[8:]) == (sorted(jobs[:8]), sorted(jobs[8:]))
    assert record(redis_client, "unwanted")["state"] == "unhandled"
    assert not {"error", "settled"} & record(redis_client, "m00").keys()


def test_other_workers_events_do_not_hide_those_behind_them(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unhandled, "PAGE", 2)
    for number in range(5):
        plant(redis_client, f"a{number}", State.UNHANDLED, OFFERED, only="other.handle")
        redis_client.zadd(INDEX.unhandled + OFFERED, {f"a{number}": number})
    plant(redis_client, "b", State.UNHANDLED, OFFERED, only="new.look")
    worker = Unhandled(store_on(redis_client), wanted=NEW)
    assert [worker.put_back() for _ in range(5)] == [0, 0, 1, 0, 0]
    assert record(redis_client, "b")["only"] == "new.look"
    theirs = Unhandled(store_on(redis_client), wanted={OFFERED: ("other.handle",)})
    assert sum(theirs.put_back() for _ in range(4)) == 5


def test_every_worker_puts_its_unhandled_events_back(redis_client: Redis) -> None:
    def sweeper(name: str, wanted: Mapping[str, tuple[str, ...]]) -> Sweeper:
        return Sweeper(store_on(redis_client), name=name, interval=1, lease=60.0, wanted=wanted)

    redis_client.sadd("rq:workers:credhook", "rq:worker:gone")  # RQ's record of it has expired.
    sweeper("leader", {}).run()
    assert not redis_client.exists("rq:workers:credhook")
    plant(redis_client, "m1", State.UNHANDLED)
    sweeper("leader", {}).run()
    assert record(redis_client, "m1")["state"] == "unhandled"
    plant(redis_client, "m2", State.ACCEPTED)
    redis_client.zadd(INDEX.open, {"m2": 1})
    redis_client.rpush(INDEX.jobs, "gone", "settled", job_id("m2"))
    leader = Sweeper(store_on(redis_client), name="leader", interval=1, lease=60.0, head=2)
    assert leader.run() == 0  # It may still come up.
    sweeper("another", NEW).run()
    assert record(redis_client, "m1")["state"] == "accepted"
    assert redis_client.get(INDEX.sweeper_lock) == b"leader"
    assert 2_000 < redis_client.pttl(INDEX.sweeper_lock) <= 3_000  # Three rounds.
