"""Events that no worker had a handler for: kept, shown, and put back for the first worker that has one."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx
import pytest
from accepting import record
from attempts import Attempts, attempts
from events_command import Run
from fleet_harness import Stub
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis_keys import EVENT, job_id
from stored_events import INDEX, plant
from structlog.testing import capture_logs

from credhook.backoff import Backoff
from credhook.listener.admin import create_admin
from credhook.store import State
from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.attempt.retry import GiveUp, Retry
from credhook.worker.handlers.registry import Handlers
from credhook.worker.queue import unhandled
from credhook.worker.queue.replay import Replay, Settled
from credhook.worker.queue.sweeper import Sweeper
from credhook.worker.queue.unhandled import Unhandled

COMPLETED, OFFERED, FAILED = (f"openid4vc.issuance.{one}" for one in ("completed", "offered", "failed"))
#: What a worker wants that has come with the handler.
NEW: Mapping[str, tuple[str, ...]] = {COMPLETED: ("new.handle",), OFFERED: ("new.handle", "new.look")}


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub().running() as stub:
        yield stub


def told(name: str, *types: str, ran: list[str]) -> Any:
    handlers: Any = Handlers(name)

    async def handle(event: Any, context: Any) -> None:
        ran.append(f"{name} {event.webhook_id} {event.attempt}")

    handlers.on(*types)(handle)
    return handlers


@pytest.fixture
async def old(redis_url: str, stub: Stub) -> AsyncIterator[Attempts]:
    """A worker that has a handler for another type."""
    async with attempts(redis_url, stub, told("old", FAILED, ran=[])) as made:
        yield made


async def test_what_a_worker_has_no_handler_for_is_kept_unseen_and_costs_no_attempt(
    old: Attempts, stub: Stub, redis_client: Redis
) -> None:
    await old.accept("m1", COMPLETED, "r1")
    with capture_logs() as logs:
        assert (await old.next()).state is State.UNHANDLED
    (said,) = [line for line in logs if line["event"].startswith("event_")]
    assert (said["event"], said["log_level"]) == ("event_unhandled", "warning")
    assert not stub.calls
    kept = record(redis_client, "m1")
    assert (kept["state"], kept["attempts"], kept["error"]) == ("unhandled", "0", "NoHandler")
    assert 0 < redis_client.ttl(EVENT + "m1") <= 604_800
    assert redis_client.zrange(INDEX.unhandled + COMPLETED, 0, -1) == [b"m1"]
    for key in (INDEX.open, INDEX.leases, INDEX.dead, INDEX.locks, "rq:job:" + job_id("m1")):
        assert not redis_client.exists(key)


async def test_it_is_handled_as_soon_as_a_worker_has_a_handler(
    old: Attempts, redis_url: str, stub: Stub, redis_client: Redis
) -> None:
    await old.accept("m1", COMPLETED, "r1")
    await old.next()
    ran: list[str] = []
    async with attempts(redis_url, stub, told("new", COMPLETED, ran=ran)) as new:
        assert Unhandled(redis_client, queue="credhook", wanted=NEW).put_back() == 1
        assert redis_client.ttl(EVENT + "m1") == -1
        assert (await new.next()).state is State.DONE
    assert ran == ["new m1 1"]
    assert not redis_client.exists(INDEX.unhandled + COMPLETED)
    assert "attempts" not in record(redis_client, "m1")


async def test_passing_between_workers_with_and_without_the_handler_spends_nothing_that_it_has_left(
    old: Attempts, redis_url: str, stub: Stub, redis_client: Redis
) -> None:
    """More often than an event has attempts, after one that failed; and its progress is still known."""
    ran: list[str] = []
    handlers, failing = told("new", COMPLETED, ran=ran), True

    async def later(event: Any, context: Any) -> None:
        ran.append(f"later {event.webhook_id} {event.attempt}")
        if failing:
            raise Retry(after=0.01)

    handlers.on(COMPLETED)(later)
    async with attempts(redis_url, stub, handlers) as new:
        await old.accept("m1", COMPLETED, "r1")
        assert (await new.next()).state is State.WAITING
        wanted = {COMPLETED: ("new.handle", "new.later")}
        for _ in range(15):
            assert (await old.next()).state is State.UNHANDLED
            assert Unhandled(redis_client, queue="credhook", wanted=wanted).put_back() == 1
        failing = False
        assert (await new.next()).state is State.DONE
    assert ran == ["new m1 1", "later m1 1", "later m1 2"]


async def test_a_handler_that_failed_is_waited_for_where_only_its_neighbours_are(
    redis_url: str, stub: Stub, redis_client: Redis
) -> None:
    """A deploy brings two handlers; an old worker takes what they have failed at, and has nothing left to do."""
    ran: list[str] = []
    before, after = told("old", COMPLETED, ran=ran), told("old", COMPLETED, ran=ran)
    failing = {"late", "later"}

    def brought(name: str) -> Any:
        async def handle(event: Any, context: Any) -> None:
            ran.append(name)
            if name in failing:
                raise Retry(after=0.01)

        handle.__name__ = name
        return handle

    for name in ("late", "later"):
        after.on(COMPLETED)(brought(name))
    wanted = {COMPLETED: ("old.handle", "old.late")}
    async with attempts(redis_url, stub, after) as new, attempts(redis_url, stub, before) as old:
        await new.accept("m1", COMPLETED, "r1")
        assert (await new.next()).state is State.WAITING
        assert record(redis_client, "m1")["pending"] == "old.late old.later"
        assert (await old.next()).state is State.UNHANDLED
        assert record(redis_client, "m1")["only"] == "old.late old.later"
        assert Unhandled(redis_client, queue="credhook", wanted={COMPLETED: ("old.handle",)}).put_back() == 0
        assert Unhandled(redis_client, queue="credhook", wanted=wanted).put_back() == 1
        failing.clear()
        assert (await new.next()).state is State.DONE
    assert sorted(ran) == ["late", "late", "later", "later", "old m1 1"]
    assert not {"only", "pending"} & record(redis_client, "m1").keys()


def test_only_what_is_wanted_here_is_put_back_and_in_the_order_in_which_it_came(redis_client: Redis) -> None:
    for number, kind in enumerate((COMPLETED, OFFERED, FAILED, OFFERED, COMPLETED)):
        plant(redis_client, f"m{number}", State.UNHANDLED, kind, age=number, attempts="0", error="NoHandler")
    assert Unhandled(redis_client, queue="credhook", wanted=NEW).put_back() == 4
    assert redis_client.lrange(INDEX.jobs, 0, -1) == [
        job_id("m4").encode(),
        job_id("m3").encode(),
        job_id("m1").encode(),
        job_id("m0").encode(),
    ]
    assert record(redis_client, "m2")["state"] == "unhandled"
    assert not {"error", "settled"} & record(redis_client, "m0").keys()
    assert Unhandled(redis_client, queue="credhook", wanted=NEW).put_back() == 0


def test_two_workers_at_once_put_back_each_event_once(redis_url: str, redis_client: Redis) -> None:
    with redis_client.pipeline(transaction=False) as pipeline:
        for number in range(1_000):
            plant(pipeline, f"m{number}", State.UNHANDLED, resource=f"r{number}")
        pipeline.execute()
    counts: list[int] = []
    both = threading.Barrier(2)

    def put_back() -> None:
        with Redis.from_url(redis_url) as redis:
            worker = Unhandled(redis, queue="credhook", wanted=NEW)
            both.wait()
            counts.append(worker.put_back())

    threads = [threading.Thread(target=put_back) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jobs: Any = redis_client.lrange(INDEX.jobs, 0, -1)
    assert sum(counts) == len(jobs) == len(set(jobs)) == 1_000


def test_many_are_put_back_round_by_round_and_none_overtakes_an_older_one_of_its_resource(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unhandled, "PAGE", 4)
    for number in range(12):  # Of one type there are more than of the other.
        plant(redis_client, f"m{number:02}", State.UNHANDLED, COMPLETED if number % 3 else OFFERED, age=100 - number)
        redis_client.zadd(INDEX.unhandled + (COMPLETED if number % 3 else OFFERED), {f"m{number:02}": number})
    worker = Unhandled(redis_client, queue="credhook", wanted=NEW)
    assert [worker.put_back() for _ in range(3)] == [6, 6, 0]
    jobs: Any = redis_client.lrange(INDEX.jobs, 0, -1)
    assert jobs == sorted(jobs)


def test_those_for_a_handler_of_other_workers_do_not_hide_the_ones_behind_them(
    redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unhandled, "PAGE", 2)
    for number in range(5):
        plant(redis_client, f"a{number}", State.UNHANDLED, OFFERED, only="other.handle")
        redis_client.zadd(INDEX.unhandled + OFFERED, {f"a{number}": number})
    plant(redis_client, "b", State.UNHANDLED, OFFERED, only="new.look")
    worker = Unhandled(redis_client, queue="credhook", wanted=NEW)
    assert [worker.put_back() for _ in range(5)] == [0, 0, 1, 0, 0]
    assert record(redis_client, "b")["only"] == "new.look"
    theirs = Unhandled(redis_client, queue="credhook", wanted={OFFERED: ("other.handle",)})
    assert sum(theirs.put_back() for _ in range(4)) == 5


def test_every_round_looks_for_them_whoever_leads(redis_client: Redis) -> None:
    def sweeper(name: str, wanted: Mapping[str, tuple[str, ...]]) -> Sweeper:
        return Sweeper(redis_client, queue="credhook", name=name, interval=1, retention=3_600, wanted=wanted)

    sweeper("leader", {}).run()
    plant(redis_client, "m1", State.UNHANDLED)
    sweeper("leader", {}).run()
    assert record(redis_client, "m1")["state"] == "unhandled"
    sweeper("another", NEW).run()
    assert record(redis_client, "m1")["state"] == "accepted"
    assert redis_client.get(INDEX.leader) == b"leader"


async def test_it_is_listed_counted_replayed_and_erased(
    async_redis: AsyncRedis, redis_client: Redis, events: Run
) -> None:
    for name, kind in (("m1", COMPLETED), ("m2", OFFERED), ("m3", OFFERED)):
        plant(redis_client, name, State.UNHANDLED, kind, ended={"a.bad": "dead: ValueError"}, only="gone.handle")
    plant(redis_client, "m4", State.DONE)
    listed = [json.loads(line) for line in events("list", "--state", "unhandled", "--json").stdout.splitlines()]
    assert {(one["webhook_id"], one["only"]) for one in listed} == {(f"m{n}", "gone.handle") for n in (1, 2, 3)}

    async def no_checks() -> tuple[()]:
        return ()

    transport = httpx.ASGITransport(create_admin(async_redis, no_checks, queue="credhook"))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        assert 'credhook_events{state="unhandled"} 3.0' in (await client.get("/metrics")).text.splitlines()
    assert events("replay", "--id", "m1").stdout == "replayed 1\n"
    again = record(redis_client, "m1")
    assert again["state"] == "accepted"
    assert not {"only", "h:a.bad"} & again.keys()
    assert not redis_client.exists(INDEX.unhandled + COMPLETED)
    assert events("erase", "--state", "unhandled", "--yes").stdout == "erased 2\n"
    assert not redis_client.exists(*INDEX.all_unhandled)


async def test_it_is_forgotten_after_the_retention_time(redis_client: Redis) -> None:
    now = redis_client.time()[0] * 1_000
    for key in INDEX.all_unhandled:
        redis_client.zadd(key, {"old": now - 3_601_000, "young": now - 3_500_000})
    Sweeper(redis_client, queue="credhook", name="n", interval=1, retention=3_600).run()
    for key in INDEX.all_unhandled:
        assert redis_client.zrange(key, 0, -1) == [b"young"]


class Fleet:
    """Handlers of two workers on one queue, each ending as the test says.

    Attributes:
        ran: which have run, in order.
        ends: name → what it raises, or waits for.
    """

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.ends: dict[str, Any] = {}

    def __call__(self, *names: str, **options: dict[str, Any]) -> Any:
        handlers: Any = Handlers("test")
        for name in names:

            async def handle(event: Any, context: Any, name: str = name) -> None:
                self.ran.append(name)
                end = self.ends.get(name)
                if isinstance(end, asyncio.Event):
                    await end.wait()
                elif end is not None:
                    raise end

            handle.__name__ = name
            handlers.on(COMPLETED, **options.get(name, {}))(handle)
        return handlers


WITH_B = {COMPLETED: ("test.a", "test.b")}


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


async def back_to(made: Attempts, redis: Redis, *, wanted: Mapping[str, tuple[str, ...]] = WITH_B) -> State:
    """Where the event stands after a worker that has what is wanted has put it back and tried it."""
    assert Unhandled(redis, queue="credhook", wanted=wanted).put_back() == 1
    return (await made.next()).state


async def test_a_handler_that_was_broken_off_by_a_drain_is_waited_for(
    redis_url: str, stub: Stub, redis_client: Redis, fleet: Fleet
) -> None:
    fleet.ends["b"] = asyncio.Event()
    async with attempts(redis_url, stub, fleet("a", "b")) as new, attempts(redis_url, stub, fleet("a")) as old:
        await new.accept("m1", COMPLETED, "r1")
        attempt = Attempt(await new.claim())
        trial = asyncio.create_task(new.make(attempt))
        async with asyncio.timeout(60):
            while "h:test.a" not in record(redis_client, "m1"):  # noqa: ASYNC110  Redis has no event.
                await asyncio.sleep(0.01)
        assert record(redis_client, "m1")["pending"] == "test.b"  # For whoever comes after a kill -9.
        attempt.interrupt(Interruption.DRAINED)
        await trial
        assert (await old.next()).state is State.UNHANDLED
        fleet.ends.clear()
        assert await back_to(new, redis_client) is State.DONE
    assert fleet.ran == ["a", "b", "b"]


@pytest.mark.parametrize("handler", ["", "test.b"])
async def test_a_replay_of_what_was_given_up_waits_for_the_handler(
    redis_url: str, stub: Stub, redis_client: Redis, fleet: Fleet, handler: str
) -> None:
    fleet.ends["b"] = GiveUp("closed")
    async with attempts(redis_url, stub, fleet("a", "b")) as new, attempts(redis_url, stub, fleet("a")) as old:
        await new.accept("m1", COMPLETED, "r1")
        assert (await new.next()).state is State.DEAD
        replay = Replay(redis_client, queue="credhook")
        assert replay([Settled("m1", "dead")], handler=handler, types=[COMPLETED]) == [b"replayed"]
        assert (await old.next()).state is State.UNHANDLED
        assert replay([Settled("m1", "unhandled")]) == [b"replayed"]  # An operator's, of all that is unhandled.
        assert (await old.next()).state is State.UNHANDLED
        fleet.ends.clear()
        assert await back_to(new, redis_client) is State.DONE
    assert fleet.ran == ["a", "b", "b"]


async def test_a_worker_without_any_handler_does_not_forget_which_was_waited_for(
    redis_url: str, stub: Stub, redis_client: Redis, fleet: Fleet
) -> None:
    fleet.ends["b"] = Retry(after=0.01)
    async with (
        attempts(redis_url, stub, fleet("a", "b")) as new,
        attempts(redis_url, stub, told("other", FAILED, ran=[])) as other,
    ):
        await new.accept("m1", COMPLETED, "r1")
        assert (await new.next()).state is State.WAITING
        assert (await other.next()).state is State.UNHANDLED
        assert Unhandled(redis_client, queue="credhook", wanted={COMPLETED: ("test.a",)}).put_back() == 0
        fleet.ends.clear()
        assert await back_to(new, redis_client) is State.DONE
    assert fleet.ran == ["a", "b", "b"]


async def test_a_worker_that_lacks_the_handler_gives_nothing_up_for_it(
    redis_url: str, stub: Stub, redis_client: Redis, fleet: Fleet
) -> None:
    """Neither for the attempts of which the handler has more, nor for a neighbour that was given up."""
    fleet.ends = {"a": GiveUp("closed"), "b": ValueError()}
    stubborn = {"retries": 50, "backoff": Backoff(first=0.001, longest=0.001)}
    async with (
        attempts(redis_url, stub, fleet("a", "b", b=stubborn), MAX_ATTEMPTS=2) as new,
        attempts(redis_url, stub, fleet("a"), MAX_ATTEMPTS=2) as old,
    ):
        await new.accept("m1", COMPLETED, "r1")
        assert [(await new.next()).state for _ in range(3)] == [State.WAITING] * 3
        assert (await old.next()).state is State.UNHANDLED
        fleet.ends.clear()
        assert await back_to(new, redis_client) is State.DEAD
    assert fleet.ran == ["a", "b", "b", "b", "b"]


async def test_a_handler_that_is_asked_to_catch_up_does_not_wait_for_one_that_is_not(
    redis_url: str, stub: Stub, redis_client: Redis, fleet: Fleet
) -> None:
    async with attempts(redis_url, stub, fleet("b")) as before:
        await before.accept("m1", COMPLETED, "r1")
        assert (await before.next()).state is State.DONE
    replay = Replay(redis_client, queue="credhook")
    assert replay([Settled("m1", "done")], handler="test.b", types=[COMPLETED]) == [b"replayed"]
    async with attempts(redis_url, stub, fleet("a", "b", b={"after": "a"})) as after:
        assert (await after.next()).state is State.DONE
    assert fleet.ran == ["b", "b"]
