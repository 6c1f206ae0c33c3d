"""The history of an event, as scripts append to it and `credhook events show` prints it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook import Retry
from credhook.events import Event
from credhook.receiver.inbox import Outcome
from credhook.store import HISTORY_ENTRIES, State
from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.handlers.registry import Handlers
from credhook.worker.queue.claims import Claims, Settlement
from credhook.worker.queue.leases import reclaim
from support.redis.redis_server import configured
from support.store.accepting import everything, inbox_on
from support.store.stored_events import plant
from support.store.stores import EVENT, HISTORY, INDEX, store_on
from support.worker.attempts import Attempts, attempts
from support.worker.events_command import Run
from support.worker.fleet_harness import Stub
from support.worker.harness import COMPLETED

handlers = Handlers("test")
#: Each as often as it stands here: what goes wrong with the next attempts.
TROUBLE: list[Exception] = []


@handlers.on("openid4vc.issuance.completed")
async def good(event: Any, context: Any) -> None:
    """Ends well."""


@handlers.on("openid4vc.issuance.completed")
async def bad(event: Any, context: Any) -> None:
    if TROUBLE:
        raise TROUBLE.pop(0)


@pytest.fixture
async def made(stub: Stub, redis_url: str) -> AsyncIterator[Attempts]:
    TROUBLE.clear()
    async with attempts(redis_url, stub, handlers, RETENTION=3_600) as made:
        await made.accept("e1", COMPLETED, "r1")
        yield made


def shown(events: Run, webhook_id: str = "e1") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(events("show", webhook_id, "--json").stdout)
    return told


async def test_attempts_are_told_with_what_failed_where_and_what_followed(
    made: Attempts, redis_client: Redis, events: Run
) -> None:
    TROUBLE.append(ValueError("nobody may see this"))
    assert (await made.next()).state is State.WAITING
    assert redis_client.ttl(HISTORY + "e1") > 3_600  # The retention, which begins when the event is settled.
    waiting = shown(events)
    assert waiting["history"][0]["next_attempt_at"] == waiting["next_attempt_at"]
    assert events("replay", "e1", "--now", "--by", "ops@desk").stdout == "replayed 1\n"
    assert (await made.next()).state is State.DONE
    record = shown(events)
    first, replayed, second = record["history"]
    assert (first["worker"], first["state"]) == ("w", "waiting")
    assert first["error"] == "test.bad: ValueError"
    (failure,) = first["failures"]
    assert (failure["who"], failure["what"], failure["attempt"]) == ("test.bad", "ValueError", 1)
    assert failure["next_attempt_at"] == first["next_attempt_at"]
    assert waiting["schedules"] == {"test.bad": {"attempts": 1, "next_attempt_at": waiting["next_attempt_at"]}}
    assert failure["at"].startswith("store/test_history.py:")
    assert all(first[name].endswith("Z") for name in ("began", "at", "next_attempt_at"))
    assert record["received_at"] <= first["began"] <= first["at"] < first["next_attempt_at"]
    assert list(first["ran"]) == ["test.good"]
    assert replayed["replayed"] == {"by": "ops@desk", "now": True}
    assert (second["state"], list(second["ran"])) == ("done", ["test.bad"])
    assert record["schedules"] == {"test.bad": {"attempts": 2, "next_attempt_at": None}}
    assert record["handlers"] == {"test.good": "done", "test.bad": "done"}
    assert 3_500 < redis_client.ttl(HISTORY + "e1") <= redis_client.ttl(EVENT + "e1") <= 3_600
    assert "nobody may see" not in everything(redis_client)
    printed = events("show", "e1").stdout
    assert "replayed by ops@desk, due at once\n" in printed
    assert f"test.bad ValueError after {failure['ms']} ms at {failure['at']}, attempt 1, next at " in printed
    assert f" (cause {failure['cause']})\n" in printed


async def test_of_what_was_done_at_once_only_that_is_told(made: Attempts, redis_client: Redis, events: Run) -> None:
    assert (await made.next()).state is State.DONE
    assert not redis_client.exists(HISTORY + "e1")
    assert shown(events)["history"] == []
    printed = events("show", "e1").stdout.splitlines()
    assert [line.split()[0] for line in printed] == [
        "event", "type", "resource", "state", "received", "handler", "handler",
    ]  # fmt: skip
    assert printed[-1].endswith(" ms")


async def test_history_shows_repetitions_with_another_resource(
    made: Attempts, async_redis: AsyncRedis, redis_client: Redis, events: Run
) -> None:
    async with inbox_on(async_redis) as inbox:
        assert await inbox.accept("e1", Event(COMPLETED, "r1")) is Outcome.DUPLICATE
        with configured(redis_client, "maxmemory", "1"):  # Also by a full Redis.
            assert await inbox.accept("e1", Event(COMPLETED, "r1")) is Outcome.DUPLICATE
        redis_client.hset(INDEX.conflict + "e1", f"{COMPLETED} r9", 1)  # It has come before.
        assert await inbox.accept("e1", Event(COMPLETED, "r9")) is Outcome.CONFLICT
    assert (await made.next()).state is State.DONE
    (conflict,) = shown(events)["conflicts"]
    assert conflict == {"type": COMPLETED, "resource_id": "r9", "at": "1970-01-01T00:00:00.001Z"}


async def test_history_shows_that_an_event_was_handed_back(
    made: Attempts, async_redis: AsyncRedis, redis_client: Redis, events: Run
) -> None:
    attempt = Attempt(await made.claim())
    attempt.interrupt(Interruption.DRAINED)
    await made.make(attempt)
    worker = Claims(store_on(async_redis), lease=60, worker="x")
    assert (await worker.take(1, urgent=0)).claims
    assert reclaim(store_on(redis_client), "x", "host")
    back, died = shown(events)["history"]
    assert back["state"] == "accepted"
    assert (died["died"], died["beside"], died.get("cause")) == ("host", 0, None)
    printed = events("show", "e1").stdout
    assert ": handed back\n" in printed
    assert "its worker went silent" in printed
    assert (await made.next()).state is State.DONE
    assert [entry.get("state") for entry in shown(events)["history"]] == ["accepted", None, "done"]


async def test_history_omits_deferrals(made: Attempts, redis_client: Redis) -> None:
    claim = await made.claim()
    await made.claims.settle(claim, Settlement(State.WAITING, "platform away"))
    assert not redis_client.exists(HISTORY + "e1")


async def test_a_history_is_bounded(stub: Stub, redis_url: str, redis_client: Redis, events: Run) -> None:
    async with attempts(redis_url, stub, handlers, MAX_ATTEMPTS=100) as made:
        await made.accept("e1", COMPLETED, "r1")
        for _ in range(HISTORY_ENTRIES + 1):
            TROUBLE.append(Retry(after=0))
            await made.next()
    assert redis_client.llen(HISTORY + "e1") == HISTORY_ENTRIES
    assert shown(events)["history"][0]["retries"][0]["attempt"] == 2
    assert "earlier entries are not kept" in events("show", "e1").stdout


def test_a_name_that_is_too_long_is_cut(redis_client: Redis, events: Run) -> None:
    plant(redis_client, "m1", State.DEAD)
    assert events("replay", "m1", "--by", "n" * 500).stdout == "replayed 1\n"
    assert shown(events, "m1")["history"][0]["replayed"]["by"] == "n" * 100
