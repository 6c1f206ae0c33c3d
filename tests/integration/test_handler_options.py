"""What an author has said about a handler, kept by an attempt: a real Redis, a stub of the platform."""

import asyncio
from typing import Any

import pytest
from accepting import record
from attempts import Attempts, attempts
from fleet_harness import Answer, Call, Stub, presentation
from redis import Redis

from credhook import Backoff, GiveUp, Handlers, Retry
from credhook.store import State
from credhook.worker.attempt.attempt import Attempt, Interruption

DATA = "openid4vc.verification.data"
REQUESTED = "openid4vc.verification.requested"


def answer(call: Call) -> Answer:
    return presentation(call.resource, {"given": "Ada"})


@pytest.fixture
def stub(stub: Stub) -> Stub:
    stub.answer = answer
    return stub


class Plugin:
    """Handlers made on the way, and what became of them.

    Attributes:
        notes: what they have done, in order.
        gates: handler → what it waits for.
    """

    def __init__(self) -> None:
        self.handlers: Any = Handlers("test")
        self.notes: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.ends: dict[str, Exception | None] = {}

    def handler(self, name: str, *types: str, gated: bool = False, **options: Any) -> None:
        async def function(event: Any, context: Any) -> None:
            self.notes.append(f"{name} begins")
            try:
                if gated:
                    await self.gates[name].wait()
                if (error := self.ends.get(name)) is not None:
                    raise error
            except asyncio.CancelledError:
                self.notes.append(f"{name} is cancelled")
                raise
            self.notes.append(f"{name} ends")

        function.__name__ = name
        if gated:
            self.gates[name] = asyncio.Event()
        self.handlers.on(*(types or ("*",)), **options)(function)

    async def noted(self, note: str) -> None:
        async with asyncio.timeout(60):
            while note not in self.notes:  # noqa: ASYNC110  What is waited for is a list.
                await asyncio.sleep(0.01)


@pytest.fixture
def plugin() -> Plugin:
    return Plugin()


def trying(made: Attempts, attempt: Attempt) -> "asyncio.Task[Any]":
    return asyncio.create_task(made.make(attempt))


async def test_a_slow_handler_does_not_hold_up_its_neighbours_and_each_is_recorded_as_it_ends(
    redis_url: str, stub: Stub, plugin: Plugin, redis_client: Redis
) -> None:
    plugin.handler("slow", gated=True)
    plugin.handler("quick")
    async with attempts(redis_url, stub, plugin.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        trial = trying(made, Attempt(await made.claim()))
        await plugin.noted("quick ends")
        async with asyncio.timeout(60):
            while "h:test.quick" not in record(redis_client, "e1"):  # noqa: ASYNC110  Redis has no event.
                await asyncio.sleep(0.01)
        assert "h:test.slow" not in record(redis_client, "e1")
        plugin.gates["slow"].set()
        settlement, _ = await trial
    assert settlement.state is State.DONE
    assert record(redis_client, "e1")["h:test.slow"].startswith("done ")
    assert plugin.notes == ["slow begins", "quick begins", "quick ends", "slow ends"]


@pytest.mark.parametrize("why", list(Interruption))
async def test_an_interruption_ends_all_that_run(
    redis_url: str, stub: Stub, plugin: Plugin, redis_client: Redis, why: Interruption
) -> None:
    for name in ("one", "two"):
        plugin.handler(name, gated=True)
    plugin.handler("quick")
    async with attempts(redis_url, stub, plugin.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        attempt = Attempt(await made.claim())
        trial = trying(made, attempt)
        for note in ("one begins", "two begins"):
            await plugin.noted(note)
        async with asyncio.timeout(60):
            while "test.quick" not in attempt.statuses:  # noqa: ASYNC110  What is waited for is a dictionary.
                await asyncio.sleep(0)
        attempt.interrupt(why)
        await trial
    assert sorted(plugin.notes)[:3] == ["one begins", "one is cancelled", "quick begins"]
    assert "two is cancelled" in plugin.notes
    assert record(redis_client, "e1")["h:test.quick"].startswith("done ")


async def test_one_that_needs_another_waits_for_it_and_is_not_run_while_that_fails(
    redis_url: str, stub: Stub, plugin: Plugin
) -> None:
    plugin.handler("account", gated=True)
    plugin.handler("mail", after="account")
    plugin.handler("other")
    plugin.ends["account"] = Retry(after=0.02)
    async with attempts(redis_url, stub, plugin.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        trial = trying(made, Attempt(await made.claim()))
        await plugin.noted("other ends")
        assert "mail begins" not in plugin.notes
        plugin.gates["account"].set()
        settlement, _ = await trial
        assert settlement.state is State.WAITING
        assert "mail begins" not in plugin.notes
        plugin.ends.clear()
        assert (await made.next()).state is State.DONE
    assert plugin.notes[-4:] == ["account begins", "account ends", "mail begins", "mail ends"]
    assert plugin.notes.count("other begins") == 1


async def test_one_that_needs_another_is_given_up_with_it(
    redis_url: str, stub: Stub, plugin: Plugin, redis_client: Redis
) -> None:
    plugin.handler("account")
    plugin.handler("mail", after="account")
    plugin.ends["account"] = GiveUp("closed")
    async with attempts(redis_url, stub, plugin.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        assert (await made.next()).state is State.DEAD
    assert plugin.notes == ["account begins"]
    assert record(redis_client, "e1")["h:test.mail"] == "dead: test.account was given up"


async def test_one_that_needs_another_runs_alone_for_events_that_the_other_does_not_want(
    redis_url: str, stub: Stub, plugin: Plugin
) -> None:
    plugin.handler("account", DATA)
    plugin.handler("mail", after="account")
    async with attempts(redis_url, stub, plugin.handlers) as made:
        await made.accept("e1", REQUESTED, "pre_1")
        assert (await made.next()).state is State.DONE
    assert plugin.notes == ["mail begins", "mail ends"]


async def test_a_condition_decides_with_the_details_and_is_asked_once(
    redis_url: str, stub: Stub, plugin: Plugin, redis_client: Redis
) -> None:
    asked: list[str] = []

    def trusted(event: Any) -> bool:
        asked.append(event.details.status)
        return bool(event.details.trusted and event.details.status == "nothing like it")

    plugin.handler("conditional", condition=trusted)
    plugin.handler("failing")
    plugin.ends["failing"] = Retry(after=0.02)
    async with attempts(redis_url, stub, plugin.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        await made.next()
        plugin.ends.clear()
        assert (await made.next()).state is State.DONE
    assert len(asked) == 1
    assert "conditional begins" not in plugin.notes
    assert record(redis_client, "e1")["h:test.conditional"] == "skipped"


async def test_a_condition_that_fails_is_a_handler_that_fails(redis_url: str, stub: Stub, plugin: Plugin) -> None:
    plugin.handler("conditional", condition=lambda event: event.nothing, retries=0)
    async with attempts(redis_url, stub, plugin.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        settlement = await made.next()
    assert (settlement.state, settlement.error) == (State.DEAD, "test.conditional: AttributeError")


async def test_a_handler_has_attempts_pauses_and_a_time_of_its_own(redis_url: str, stub: Stub, plugin: Plugin) -> None:
    plugin.handler("stubborn", retries=2, backoff=Backoff(first=0.01, longest=0.02))
    plugin.handler("hopeless", give_up_on=KeyError)
    plugin.handler("slow", gated=True, timeout=0.05, retries=0)
    plugin.ends = {"stubborn": ValueError(), "hopeless": KeyError("x")}
    async with attempts(redis_url, stub, plugin.handlers, MAX_ATTEMPTS=2) as made:
        await made.accept("e1", DATA, "pre_1")
        states = [(await made.next()).state for _ in range(3)]
    assert states == [State.WAITING, State.WAITING, State.DEAD]
    begun = [note for note in plugin.notes if note.endswith("begins")]
    assert [begun.count(f"{name} begins") for name in ("stubborn", "hopeless", "slow")] == [3, 1, 1]


async def test_what_the_start_up_returned_is_there_for_its_own_plugin(redis_url: str, stub: Stub) -> None:
    seen: list[Any] = []
    handlers: Handlers[dict[str, int]] = Handlers("test")

    @handlers.startup
    async def connect() -> dict[str, int]:
        return {"connections": 1}

    @handlers.shutdown
    def close(state: dict[str, int]) -> None:
        seen.append(("closed", state))

    def look(event: Any, context: Any) -> None:
        seen.append(context.state)

    handlers.on("*")(look)
    async with attempts(redis_url, stub, handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        await made.next()
    assert seen == [{"connections": 1}, ("closed", {"connections": 1})]


async def test_a_handler_has_so_many_events_at_a_time_in_the_whole_fleet(
    redis_url: str, stub: Stub, plugin: Plugin, redis_client: Redis
) -> None:
    """Two workers. What finds no place fetches nothing, spends no attempt and comes back."""
    plugin.handler("limited", gated=True, concurrency=2)
    async with (
        attempts(redis_url, stub, plugin.handlers) as made,
        attempts(redis_url, stub, plugin.handlers) as other,
    ):
        for number in range(3):
            await made.accept(f"e{number}", DATA, f"pre_{number}")
        first, second = Attempt(await made.claim()), Attempt(await other.claim())
        trials = [trying(made, first), trying(other, second)]
        async with asyncio.timeout(60):
            while plugin.notes.count("limited begins") < 2:  # noqa: ASYNC110  What is waited for is a list.
                await asyncio.sleep(0.01)
        fetched = len(stub.calls)
        third = Attempt(await made.claim())
        settlement, _ = await made.make(third)
        assert settlement is not None
        assert (settlement.state, settlement.spend) == (State.WAITING, False)
        assert settlement.error == "test.limited: ConcurrencyReached"
        assert len(stub.calls) == fetched
        plugin.gates["limited"].set()
        await asyncio.gather(*trials)
        assert (await made.next()).state is State.DONE
        assert int(record(redis_client, "e2").get("attempts", 1)) == 1
    assert plugin.notes.count("limited begins") == 3


async def test_the_place_of_one_whose_lease_has_ended_is_free(
    redis_url: str, stub: Stub, plugin: Plugin, redis_client: Redis
) -> None:
    plugin.handler("limited", concurrency=1)
    async with attempts(redis_url, stub, plugin.handlers) as made:
        redis_client.sadd("credhook:credhook:running:test.limited", "of a dead worker")
        redis_client.zadd("credhook:credhook:leases", {"of a dead worker": 1})
        await made.accept("e1", DATA, "pre_1")
        assert (await made.next()).state is State.DONE
