"""What an author has said about a handler, kept by an attempt: a real Redis, a stub of the platform."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from redis import Redis
from structlog.testing import capture_logs

from credhook import Backoff, GiveUp, Retry
from credhook.store import State
from credhook.store.replay import Replay, Settled
from credhook.worker.attempt import retry
from credhook.worker.attempt.attempt import Attempt
from support.store.accepting import record
from support.store.stores import HISTORY, INDEX, store_on
from support.waiting import until_async
from support.worker.attempts import Attempts, Planned, attempts
from support.worker.fleet_harness import Answer, Stub, presentation

DATA = "openid4vc.verification.data"
REQUESTED = "openid4vc.verification.requested"


class Plugin(Planned):
    """Handlers made on the way, and a worker that has them."""

    def __init__(self, redis_url: str, stub: Stub) -> None:
        super().__init__()
        self.redis_url, self.stub = redis_url, stub

    async def noted(self, note: str, times: int = 1) -> None:
        await until_async(lambda: self.notes.count(note) >= times, what=note)

    @asynccontextmanager
    async def worker(self, event_type: str = DATA, **settings: Any) -> AsyncIterator[Attempts]:
        """A worker with these handlers, and one event for it."""
        async with attempts(self.redis_url, self.stub, self.handlers, **settings) as made:
            await made.accept("e1", event_type, "pre_1")
            yield made


@pytest.fixture
def plugin(redis_url: str, stub: Stub) -> Plugin:
    stub.answer = lambda call: presentation(call.resource, {"given": "Ada"})
    return Plugin(redis_url, stub)


async def test_slow_handler_does_not_delay_the_records_of_others(plugin: Plugin, redis_client: Redis) -> None:
    plugin.add("slow", gated=True)
    plugin.add("quick")
    began = time.monotonic()
    async with plugin.worker() as made:
        trial = asyncio.create_task(made.next())
        await until_async(lambda: "h:test.quick" in record(redis_client, "e1"), what="the record")
        assert "h:test.slow" not in record(redis_client, "e1")
        plugin.gates["slow"].set()
        settlement = await trial
    assert settlement.state is State.DONE
    took = int(record(redis_client, "e1")["h:test.slow"].removeprefix("done "))  # Ms.
    assert 0 <= took <= (time.monotonic() - began) * 1_000 + 1
    assert plugin.notes == ["slow begins", "quick begins", "quick ends", "slow ends"]


async def test_after_handler_does_not_run_while_the_other_fails(plugin: Plugin) -> None:
    plugin.add("account", gated=True)
    plugin.add("mail", after="account")
    plugin.add("other")
    plugin.ends["account"] = Retry(after=0.02)
    async with plugin.worker() as made:
        trial = asyncio.create_task(made.next())
        await plugin.noted("other ends")
        assert "mail begins" not in plugin.notes
        plugin.gates["account"].set()
        settlement = await trial
        assert settlement.state is State.WAITING
        assert "mail begins" not in plugin.notes
        plugin.ends = {"mail": Retry(after=0.02)}
        assert (await made.next()).state is State.WAITING
        plugin.ends.clear()  # It runs though the other was done in an earlier attempt.
        assert (await made.next()).state is State.DONE
    assert plugin.notes[-5:] == ["account begins", "account ends", "mail begins", "mail begins", "mail ends"]
    assert plugin.notes.count("other begins") == 1


#: Its condition returns what it should await.
AWAITS = {"condition": lambda _: asyncio.sleep(0), "retries": 0}


@pytest.mark.parametrize(
    ("event_type", "options", "state", "notes", "mail"),
    [
        pytest.param(DATA, {}, State.DEAD, ["account begins"], "dead: test.account was given up", id="given up"),
        pytest.param(DATA, {"condition": lambda _: False}, State.DONE, [], "skipped", id="skipped"),
        pytest.param(DATA, AWAITS, State.DEAD, [], "dead: test.account was given up", id="not awaited"),
        pytest.param(REQUESTED, {}, State.DONE, ["mail begins", "mail ends"], "done ", id="not wanted"),
    ],
)
async def test_after_handler_ends_as_the_other_handler_does(
    plugin: Plugin, redis_client: Redis, event_type: str, options: Any, state: State, notes: list[str], mail: str
) -> None:
    plugin.add("account", DATA, **options)
    plugin.add("mail", after="account")
    plugin.ends["account"] = GiveUp("closed")
    async with plugin.worker(event_type) as made:
        assert (await made.next()).state is state
        if mail == "skipped":  # Also where it is to run alone.
            Replay(store_on(redis_client))([Settled("e1", state)], handler="test.mail", types=[event_type])
            assert (await made.next()).state is state
    assert plugin.notes == notes
    assert record(redis_client, "e1")["h:test.mail"].startswith(mail)
    assert "c:test.mail" not in record(redis_client, "e1")  # The failure is the other's alone.


async def test_condition_decides_once_with_the_details(plugin: Plugin, redis_client: Redis) -> None:
    asked: list[str] = []

    def trusted(event: Any) -> bool:
        asked.append(event.details.status)
        return bool(event.details.trusted and event.details.status == "nothing like it")

    plugin.add("conditional", condition=trusted)
    plugin.add("failing")
    plugin.ends["failing"] = Retry(after=0.02)
    async with plugin.worker() as made:
        await made.next()
        plugin.ends.clear()
        assert (await made.next()).state is State.DONE
    assert len(asked) == 1
    assert "conditional begins" not in plugin.notes
    assert record(redis_client, "e1")["h:test.conditional"] == "skipped"


async def test_failing_condition_fails_its_handler(plugin: Plugin, redis_client: Redis) -> None:
    plugin.add("conditional", condition=lambda event: event.nothing, retries=0)
    async with plugin.worker() as made:
        settlement = await made.next()
    assert (settlement.state, settlement.error) == (State.DEAD, "test.conditional: AttributeError")
    assert "c:test.conditional" in record(redis_client, "e1")


@pytest.mark.parametrize(("most", "state"), [(2, State.WAITING), (1, State.DEAD)])
async def test_fetch_is_tried_as_often_as_the_settings_say(
    plugin: Plugin, redis_client: Redis, most: int, state: State
) -> None:
    plugin.add("stubborn", retries=9)
    plugin.stub.answer = lambda _: Answer(403)
    async with plugin.worker(MAX_ATTEMPTS=most) as made:
        with capture_logs() as logs:
            assert (await made.next()).state is state
    (line,) = (line for line in logs if line["event"] == "fetch_failed")
    assert (line["error"], line["cause"]) == ("Unauthorized 403", record(redis_client, "e1")["c:fetch"])
    assert "CREDHOOK_SCOPE" in line["hint"]


async def test_handler_has_attempts_and_pauses_of_its_own(plugin: Plugin) -> None:
    plugin.add("stubborn", retries=2, backoff=Backoff(first=0.01, longest=0.02))
    plugin.add("hopeless", give_up_on=KeyError)
    plugin.add("slow", gated=True, timeout=0.05, retries=0)
    plugin.add("patient", gated=True, timeout=60)
    plugin.ends = {"stubborn": ValueError(), "hopeless": KeyError("x")}
    async with plugin.worker(MAX_ATTEMPTS=2, HANDLER_TIMEOUT=0.1) as made:
        asyncio.get_running_loop().call_later(0.3, plugin.gates["patient"].set)
        states = [(await made.next()).state for _ in range(3)]
    assert states == [State.WAITING, State.WAITING, State.DEAD]
    begun = [note for note in plugin.notes if note.endswith("begins")]
    names = "stubborn", "hopeless", "slow", "patient"
    assert [begun.count(f"{name} begins") for name in names] == [3, 1, 1, 1]
    assert "patient ends" in plugin.notes


async def test_end_of_a_handler_is_logged_and_counted(plugin: Plugin, redis_client: Redis) -> None:
    names = "ran", "unwanted", "tried_again", "gives_up", "held_up"
    for name in names:
        plugin.add(name, condition=lambda _, wanted=name != "unwanted": wanted)
    plugin.ends = {"tried_again": Retry(after=1.26), "gives_up": GiveUp("closed")}
    async with plugin.worker() as made:
        runs: Any = made.processor.runs
        runs.begin(SimpleNamespace(webhook_id="e1"), [*plugin.handlers][-1]).hold()
        with capture_logs() as logs:
            await made.next()
    failed = {line["handler"]: line for line in logs if line["event"] == "handler_failed"}
    assert {name: (line["final"], line["retry_in"], line["hint"]) for name, line in failed.items()} == {
        "test.gives_up": (True, None, ""),
    }  # fmt: skip
    of_event = record(redis_client, "e1")
    assert [line["cause"] for line in failed.values()] == [of_event.get(f"c:{name}") for name in failed]
    line = next(line for line in logs if line["event"] == "event_waiting")
    assert (line["error"], line["seconds"], line["handlers"]) == ("test.tried_again: Retry", 1.3, ["test.ran"])
    assert line["retry_in"] == {"test.tried_again": 1.3, "test.held_up": 2.0}
    told: Any = redis_client.lindex(HISTORY + "e1", 0)
    entry = json.loads(told.partition(b" ")[2])
    assert (entry["wait"], list(entry["ran"])) == (1_260, ["test.ran"])
    assert entry["skipped"] == line["skipped"] == ["test.unwanted"]
    seconds = REGISTRY.get_sample_value("credhook_handler_duration_seconds_sum", {"handler": "test.ran"})
    assert seconds == pytest.approx(entry["ran"]["test.ran"] / 1_000, abs=0.0001)
    ends = "done", "skipped", "retried", "gave_up", "deferred"
    for name, end, ran in zip(names, ends, (1, None, 1, 1, None), strict=True):
        of_it = {"handler": f"test.{name}"}
        assert REGISTRY.get_sample_value("credhook_handler_duration_seconds_count", of_it) == ran
        assert REGISTRY.get_sample_value("credhook_handler_runs_total", {**of_it, "type": DATA, "outcome": end}) == 1


async def test_concurrency_limits_a_handler_in_the_whole_fleet(plugin: Plugin, redis_client: Redis) -> None:
    plugin.add("free", concurrency=9)
    plugin.add("limited", gated=True, concurrency=2)
    async with plugin.worker() as made, attempts(plugin.redis_url, plugin.stub, plugin.handlers) as other:
        for number in (2, 3):
            await made.accept(f"e{number}", DATA, f"pre_{number}")
        trials = [asyncio.create_task(one.next(Attempt(await one.claim()))) for one in (made, other)]
        await plugin.noted("limited begins", 2)
        assert 86_000 < redis_client.ttl("credhook:credhook:running:test.limited") <= 86_400
        settlement = await made.next()
        assert (settlement.state, settlement.error) == (State.WAITING, "test.limited: ConcurrencyReached")
        assert [*settlement.schedules] == ["test.limited"]
        assert plugin.notes.count("free ends") == 3  # Its limit holds up no other handler.
        plugin.gates["limited"].set()
        await asyncio.gather(*trials)
        assert (await made.next()).state is State.DONE
        assert record(redis_client, "e3")["p:test.limited"].startswith("0 ")
    assert plugin.notes.count("limited begins") == 3


async def test_rate_limits_a_handler_in_the_whole_fleet(plugin: Plugin, redis_client: Redis) -> None:
    plugin.add("free")
    plugin.add("limited", rate="60/h", concurrency=2)
    async with plugin.worker() as made, attempts(plugin.redis_url, plugin.stub, plugin.handlers) as other:
        for number in (2, 3):
            await made.accept(f"e{number}", DATA, f"pre_{number}")
        assert (await made.next()).state is State.DONE
        settlements = [await other.next(), await other.next()]
    assert [(one.state, one.error) for one in settlements] == [(State.WAITING, "test.limited: RateReached")] * 2
    assert plugin.notes.count("free ends") == 3  # The rate holds up no other handler.
    assert plugin.notes.count("limited ends") == 1
    assert [record(redis_client, one)["p:test.limited"][:2] for one in ("e2", "e3")] == ["0 ", "0 "]  # No attempt.
    first, second = (one.wait for one in settlements)
    assert 50 < first <= 63
    assert first + 59 < second < first + 61  # They ask in turn.


async def test_ended_handler_frees_its_place_while_another_runs(plugin: Plugin, redis_client: Redis) -> None:
    plugin.add("slow", gated=True)
    plugin.add("limited", concurrency=1)
    async with plugin.worker() as made:
        await made.accept("e2", DATA, "pre_2")
        trials = [asyncio.create_task(made.next())]
        await plugin.noted("limited ends")
        await until_async(lambda: not redis_client.exists("credhook:credhook:running:test.limited"), what="the place")
        trials.append(asyncio.create_task(made.next()))
        await plugin.noted("limited ends", 2)
        plugin.gates["slow"].set()
        assert [trial.state for trial in await asyncio.gather(*trials)] == [State.DONE, State.DONE]


async def test_handler_without_a_free_place_is_skipped_by_its_condition(plugin: Plugin, redis_client: Redis) -> None:
    plugin.add("limited", concurrency=1, condition=lambda event: event.resource_id != "pre_2")
    redis_client.sadd("credhook:credhook:running:test.limited", "another")
    redis_client.zadd(INDEX.leases, {"another": 2e15})
    async with plugin.worker() as made:
        await made.accept("e2", DATA, "pre_2")
        assert (await made.next()).error == "test.limited: ConcurrencyReached"
        assert (await made.next()).state is State.DONE
    assert record(redis_client, "e2")["h:test.limited"] == "skipped"


async def waits_of_backlog(plugin: Plugin, redis_client: Redis, events: int) -> list[float]:
    """Return how long each event of a backlog waits for a handler whose only place is taken. Check their count."""
    plugin.add("limited", concurrency=1)
    redis_client.sadd("credhook:credhook:running:test.limited", "another")
    redis_client.zadd(INDEX.leases, {"another": 2e15})
    async with plugin.worker() as made:
        for number in range(2, events + 1):
            await made.accept(f"e{number}", DATA, f"pre_{number}")
        attempts_made = [Attempt(await made.claim()) for _ in range(events)]
        waits = [(await made.next(attempt)).wait for attempt in attempts_made]
        count, seconds = made.processor.turns()["test.limited"]
        assert count in {events, events - 1}  # The first may ask again by now.
        assert max(waits) - 60 < seconds <= max(waits) + 0.1  # It is rounded.
        return waits


async def test_events_of_a_backlog_ask_for_a_place_in_turn(
    plugin: Plugin, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a backlog would ask each second, and log it."""
    monkeypatch.setattr("credhook.worker.attempt.retry.PLACE_TURN_SECONDS", 25.0)
    with capture_logs() as logs:
        waits = await waits_of_backlog(plugin, redis_client, 21)
    assert min(waits) > 0.4
    assert all(12 < later - earlier <= 25 for earlier, later in pairwise(waits))
    assert [line["log_level"] for line in logs if line["event"] == "event_waiting"] == ["debug"] * 21


async def test_turn_is_ten_minutes_away_at_most(
    plugin: Plugin, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backlog may have been erased since."""
    monkeypatch.setattr("credhook.worker.attempt.retry.PLACE_TURN_SECONDS", 500.0)
    waits = await waits_of_backlog(plugin, redis_client, 5)
    assert waits[1] > 400
    assert max(waits) <= 600 + retry.PLACE_AGAIN_SECONDS


async def test_retried_handler_keeps_its_place(plugin: Plugin, redis_client: Redis) -> None:
    plugin.add("limited", concurrency=1, backoff=Backoff(first=0.02, longest=0.02))
    redis_client.sadd("credhook:credhook:running:test.limited", "of a dead worker")
    redis_client.zadd(INDEX.leases, {"of a dead worker": 1})  # It has ended, so that the place is free.
    async with plugin.worker() as made:
        for error in (ValueError(), KeyError()):
            plugin.ends["limited"] = error
            assert (await made.next()).error == f"test.limited: {type(error).__name__}"
        assert redis_client.hget(INDEX.cause + record(redis_client, "e1")["c:test.limited"], "what") == b"KeyError"
        plugin.ends.clear()
        assert (await made.next()).state is State.DONE
