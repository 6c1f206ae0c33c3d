"""Damaged records: an event whose record cannot be read is set aside and named, and the other events go on."""

import asyncio
import json
from typing import Any

import pytest
from accepting import everything, inbox_on, record
from click.testing import CliRunner
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis_keys import CONFLICT, EVENT
from structlog.testing import capture_logs

from credhook.events import Event
from credhook.receiver.inbox import Outcome, StoreUnavailable
from credhook.store import Keys
from credhook.worker.commands.events import command as history
from credhook.worker.queue.claim import Claimant
from credhook.worker.queue.claims import Claims
from credhook.worker.queue.sweeper import Sweeper

COMPLETED, URGENT = "openid4vc.issuance.completed", "openid4vc.verification.data"
INDEX = Keys("credhook")
NO_TEXT = b"\xff\xfe"


async def accept(redis: AsyncRedis, *ids: str, kind: str = COMPLETED) -> None:
    async with inbox_on(redis) as inbox:
        await asyncio.gather(*(inbox.accept(one, Event(kind, f"r-{one}")) for one in ids))


def worker(redis: AsyncRedis, lease: float = 60.0) -> Claims:
    return Claims(redis, queue="credhook", lease=lease, retention=3_600, worker=Claimant("w", "w"))


def sweeper(redis: Redis) -> Sweeper:
    return Sweeper(redis, queue="credhook", name="n", interval=1, retention=3_600)


def lose_all(redis: Redis) -> None:
    """As after kill -9 of a fleet, and the time that leases last: nothing but the ledger is left."""
    for key in (INDEX.jobs, INDEX.leases):
        redis.delete(key)
    if redis.type(INDEX.urgent) == b"list":
        redis.delete(INDEX.urgent)
    members: Any = redis.zrange(INDEX.open, 0, -1)
    redis.zadd(INDEX.open, dict.fromkeys(members, 1))


async def take(redis: AsyncRedis) -> list[str]:
    return sorted(claim.event_id for claim in (await worker(redis).take(100, urgent=50)).claims)


def damage(redis: Redis, webhook_id: str, how: str) -> None:
    key = EVENT + webhook_id
    if how == "no hash":
        redis.delete(key)
        redis.set(key, "of another kind")
    elif how.startswith("without "):
        redis.hdel(key, how.removeprefix("without "))
    else:
        field, _, value = how.partition("=")
        redis.hset(key, field, NO_TEXT if value == "no text" else value)


DAMAGES = [
    "no hash", "without resource", "without type", "without state", "state=lost", "received=soon", "attempts=many",
    "fence=high", "due=tomorrow",
]  # fmt: skip


@pytest.mark.parametrize("how", DAMAGES)
async def test_a_record_that_cannot_be_read_is_set_aside_and_its_neighbours_go_on(
    async_redis: AsyncRedis, redis_client: Redis, how: str
) -> None:
    good = sorted(f"m{number}" for number in range(10))
    await accept(async_redis, "bad", *good)
    damage(redis_client, "bad", how)
    assert await take(async_redis) == good
    lose_all(redis_client)
    with capture_logs() as logs:
        assert sweeper(redis_client).run() == 10
        lose_all(redis_client)
        assert sweeper(redis_client).run() == 10
    (line,) = [line for line in logs if line["event"] == "events_unreadable"]
    assert list(line["events"]) == ["bad"]
    assert await take(async_redis) == good
    assert redis_client.zrange(INDEX.unreadable, 0, -1) == [b"bad"]
    assert redis_client.zscore(INDEX.open, "bad") is None
    assert 0 < redis_client.ttl(EVENT + "bad") <= 3_600


@pytest.fixture
def events(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("REDIS_URL", redis_url)
    return lambda *arguments: CliRunner().invoke(history.events, arguments, catch_exceptions=False)


@pytest.mark.parametrize("how", DAMAGES)
async def test_what_cannot_be_read_is_shown_replayed_once_it_is_mended_and_erased(
    async_redis: AsyncRedis, redis_client: Redis, events: Any, how: str
) -> None:
    await accept(async_redis, "bad", "good")
    whole: Any = redis_client.hgetall(EVENT + "bad")
    damage(redis_client, "bad", how)
    lose_all(redis_client)
    sweeper(redis_client).run()
    listed = [json.loads(line) for line in events("list", "--json").stdout.splitlines()]
    assert sorted(one["webhook_id"] for one in listed) == ["bad", "good"]
    assert "bad" in events("list").stdout
    (shown,) = map(json.loads, events("list", "--json", "--state", "unreadable").stdout.splitlines())
    assert shown.pop("cursor")
    assert json.loads(events("show", "bad", "--json").stdout) == {**shown, "history": [], "conflicts": []}
    assert events("show", "bad").stdout.startswith("event     bad  (times in UTC)\n")
    assert shown["state"] == "unreadable"
    assert shown["error"].startswith("Unreadable: ")
    # Setting it aside has mended what every state has for itself.
    if how.partition("=")[0] not in {"without state", "state", "due", "attempts", "fence"}:
        assert events("replay", "--state", "unreadable").stdout == (
            "replayed 0, left 1 (1 whose record cannot be read)\n"
        )
    redis_client.delete(EVENT + "bad")
    redis_client.hset(EVENT + "bad", mapping=whole)
    events("replay", "--id", "bad")
    redis_client.delete(INDEX.jobs)
    lose_all(redis_client)
    sweeper(redis_client).run()
    assert await take(async_redis) == ["bad", "good"]
    assert not redis_client.exists(INDEX.unreadable)
    damage(redis_client, "bad", how)
    lose_all(redis_client)
    sweeper(redis_client).run()
    assert events("erase", "--state", "unreadable", "--yes").stdout == "erased 1\n"
    assert "bad" not in everything(redis_client)


async def test_a_delivery_whose_record_cannot_be_read_is_refused_alone(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    redis_client.set(EVENT + "bad", "of another kind")
    async with inbox_on(async_redis) as inbox:
        deliveries = [inbox.accept(one, Event(COMPLETED, one)) for one in ("good", "bad", "fine")]
        results = await asyncio.gather(*deliveries, return_exceptions=True)
    assert [results[0], results[2]] == [Outcome.ACCEPTED] * 2
    assert isinstance(results[1], StoreUnavailable)


async def test_conflicts_of_one_id_are_bounded_and_all_of_them_told(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, "m1")
    async with inbox_on(async_redis) as inbox:
        others = [inbox.accept("m1", Event(COMPLETED, f"other-{number}")) for number in range(300)]
        assert set(await asyncio.gather(*others)) == {Outcome.CONFLICT}
    assert redis_client.hlen(CONFLICT + "m1") == 100
    assert record(redis_client, "m1")["resource"] == "r-m1"
