"""Damaged records: an event whose record cannot be read is set aside and named, and the other events go on."""

import asyncio
import json
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from structlog.testing import capture_logs

from credhook.events import Event
from credhook.receiver.inbox import Outcome, StoreUnavailable
from support.store.accepting import everything, inbox_on
from support.store.stores import EVENT, INDEX
from support.worker.claiming import COMPLETED, EventQueue
from support.worker.events_command import Run, listed


def lose_all(queue: EventQueue) -> None:
    """Leave only the records and the index of open events, as if a fleet had died long ago."""
    queue.redis.delete(INDEX.jobs, INDEX.leases)
    queue.lapse()


async def take(queue: EventQueue) -> list[str]:
    return sorted(claim.event_id for claim in (await queue.worker().take(100, urgent=50)).claims)


def damage(redis: Redis, webhook_id: str, how: str) -> None:
    key = EVENT + webhook_id
    if how == "no hash":
        redis.delete(key)
        redis.set(key, "of another kind")
    elif how.startswith("without "):
        redis.hdel(key, how.removeprefix("without "))
    else:
        field, _, value = how.partition("=")
        redis.hset(key, field, value)


DAMAGES = [
    "no hash", "without resource", "without type", "without state", "state=lost", "received=soon", "lapses=many",
    "fence=high", "due=tomorrow", "killed=all", "deaths=few",
]  # fmt: skip


@pytest.mark.parametrize("how", DAMAGES)
async def test_an_unreadable_event_is_set_aside_mended_and_erased(queue: EventQueue, events: Run, how: str) -> None:
    await queue.accept("broken", "good")
    whole: Any = queue.redis.hgetall(EVENT + "broken")
    damage(queue.redis, "broken", how)
    assert await take(queue) == ["good"]
    with capture_logs() as logs:
        for _ in range(2):
            lose_all(queue)
            assert queue.sweep() == 1
    (line,) = [line for line in logs if line["event"] == "events_unreadable"]
    assert list(line["events"]) == ["broken"]
    assert await take(queue) == ["good"]
    assert queue.redis.zrange(INDEX.unreadable, 0, -1) == [b"broken"]
    assert queue.redis.zscore(INDEX.open, "broken") is None
    assert 0 < queue.redis.ttl(EVENT + "broken") <= 3_600
    assert sorted(listed(events("list", "--json"))) == ["broken", "good"]
    assert "broken" in events("list").stdout
    (shown,) = map(json.loads, events("list", "--json", "--state", "unreadable").stdout.splitlines())
    assert shown.pop("cursor")
    assert json.loads(events("show", "broken", "--json").stdout) == {**shown, "history": [], "conflicts": []}
    assert events("show", "broken").stdout.startswith("event      broken  (times in UTC)\n")
    assert "\nreceived   " in events("show", "broken").stdout
    assert shown["state"] == "unreadable"
    assert shown["error"].startswith("Unreadable: ")
    # Setting it aside has mended what every state has for itself.
    if how.partition("=")[0] not in {"without state", "state", "due", "lapses", "fence"}:
        left = "replayed 0, left 1 (1 whose record cannot be read)\n"
        assert events("replay", "--state", "unreadable").stdout == left
    queue.redis.delete(EVENT + "broken")
    queue.redis.hset(EVENT + "broken", mapping=whole)
    events("replay", "broken")
    assert not queue.redis.exists(INDEX.unreadable)
    lose_all(queue)
    queue.sweep()
    assert await take(queue) == ["broken", "good"]
    damage(queue.redis, "broken", how)
    lose_all(queue)
    queue.sweep()
    assert events("erase", "--state", "unreadable", "--yes").stdout == "erased 1\n"
    assert "broken" not in everything(queue.redis)


async def test_a_delivery_of_a_damaged_record_is_refused_alone(async_redis: AsyncRedis, redis_client: Redis) -> None:
    redis_client.set(EVENT + "bad", "of another kind")
    redis_client.hset(EVENT + "half", "resource", "half")  # Its type is lost. It may have been handled.
    async with inbox_on(async_redis) as inbox:
        deliveries = [inbox.accept(one, Event(COMPLETED, one)) for one in ("good", "bad", "half", "fine")]
        good, bad, *others = await asyncio.gather(*deliveries, return_exceptions=True)
    assert [good, *others] == [Outcome.ACCEPTED, Outcome.CONFLICT, Outcome.ACCEPTED]
    assert isinstance(bad, StoreUnavailable)


async def test_the_conflicts_of_one_id_are_bounded_and_all_reported(queue: EventQueue, async_redis: AsyncRedis) -> None:
    await queue.accept("m1")
    async with inbox_on(async_redis) as inbox:
        others = [inbox.accept("m1", Event(COMPLETED, f"other-{number}")) for number in range(300)]
        assert set(await asyncio.gather(*others)) == {Outcome.CONFLICT}
    assert queue.redis.hlen(INDEX.conflict + "m1") == 100
    assert queue.record("m1")["resource"] == "r-m1"
