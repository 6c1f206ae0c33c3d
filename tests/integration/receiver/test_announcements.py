"""Receivers announce themselves in Redis: which there are, what they write to, and how much they take."""

import asyncio
import json
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.events import Event
from credhook.receiver.app import RefusalLog, create_app
from credhook.receiver.command import Announcer
from credhook.receiver.inbox import StoreUnavailable
from credhook.settings import ReceiverSettings
from credhook.store.announcements import announced
from credhook.store.errors import StoreRefusal
from support.process.serving import receiver
from support.receiver.signing import OTHER_SECRET, SECRET, body, headers
from support.redis.redis_server import configured
from support.store.accepting import inbox_on
from support.store.store_rules import wrong_expiries
from support.store.stores import INDEX, store_on
from support.waiting import until, until_async


def said(redis: Redis) -> list[dict[str, Any]]:
    return [json.loads(one.text) for one in announced(redis.hgetall(INDEX.receivers))]


def test_announcement_holds_no_secret(tmp_path: Path, redis_client: Redis, redis_url: str) -> None:
    began = time.monotonic()
    with receiver(tmp_path, redis_url, CREDHOOK_PATH_SECRET="p" * 30) as server:
        (one,) = until(lambda: said(redis_client), what="the announcement")
        assert (one["queue"], one["durability"], one["acknowledged"], one["idle"]) == ("credhook", "strict", 0, None)
        assert redis_client.smembers("rq:queues") == {b"rq:queue:credhook"}  # `status` finds a misspelt one there.
        text = str(redis_client.hgetall(INDEX.receivers))
        assert "whsec" not in text
        assert "ppp" not in text
        assert wrong_expiries(redis_client, began=began, retention=604_800) == []
        redis_client.hset(INDEX.receivers, "another", redis_client.hvals(INDEX.receivers)[0])
        assert server.stop() == 0
    assert redis_client.hkeys(INDEX.receivers) == [b"another"]  # It has said farewell.


def settings(**others: str) -> ReceiverSettings:
    return ReceiverSettings.model_validate({"CREDHOOK_WEBHOOK_SECRETS": SECRET, **others})


async def test_announcement_tells_settings_apart_without_revealing_them(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    different = {"RETENTION": "700000", "TOLERANCE": "200", "WEBHOOK_PATH": "/inbox", "DURABILITY": "standard"}
    async with inbox_on(async_redis) as inbox:
        for name, value in {"QUEUE": "credhook", "WEBHOOK_SECRETS": "whsec_" + "b" * 40, **different}.items():
            one = settings(**{f"CREDHOOK_{name}": value})
            await Announcer(store_on(async_redis), one, inbox, RefusalLog()).announce()
    alike = [one["config_fingerprint"] for one in said(redis_client)]
    assert sorted(Counter(str(one) for one in alike).values()) == [1, 1, 1, 1, 2]
    assert {name: len({one[f"CREDHOOK_{name}"] for one in alike}) for name in different} == dict.fromkeys(different, 2)
    assert {len(digest) for one in alike for digest in one.values()} == {4}


async def test_announcement_counts_deliveries_per_round_and_refusals_in_all(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    refusals, expired = RefusalLog(), time.time() - 900
    async with inbox_on(async_redis) as inbox:
        began, took = time.monotonic(), "credhook_delivery_duration_seconds_sum"
        before = REGISTRY.get_sample_value(took) or 0.0
        announcer = Announcer(store_on(async_redis), settings(), inbox, refusals)
        transport = httpx.ASGITransport(create_app(settings(), inbox, refusals))
        async with httpx.AsyncClient(transport=transport, base_url="http://inbox") as client:
            await client.post("/webhooks", headers={"user-agent": "credhook-doctor"})
            for webhook_id, content in (("m0", body()), ("m0", body(resource_id="iss_2")), ("m1", body())):
                accepted = await client.post("/webhooks", content=content, headers=headers(webhook_id, content))
                assert accepted.status_code == 202
            await client.post("/webhook", content=body(), headers=headers("m", body()))
            await client.post("/webhooks", content=body(), headers=headers("m", body(), at=expired))
            await client.post("/webhooks", content=body(), headers=headers("m", body(), secret=OTHER_SECRET))
        assert 0 < (REGISTRY.get_sample_value(took) or 0.0) - before < time.monotonic() - began
        await asyncio.sleep(0.2)
        await announcer.announce()
        (first,) = said(redis_client)
        await announcer.announce()
        (quiet,) = said(redis_client)
    assert (first["acknowledged"], quiet["acknowledged"]) == (3, 0)
    assert first["seconds"] + quiet["seconds"] <= time.monotonic() - began + 0.001  # Each second is in one round.
    for one in (first, quiet):
        assert (one["conflicts"], one["unauthenticated"], one["outside_tolerance"]) == (1, 2, 1)
        assert one["other_refusals"] == {"path": 1}
        assert 0 <= one["refused"] <= one["idle"] <= one["conflicted"] < 60  # Seconds ago.


async def test_full_redis_still_takes_announcements(async_redis: AsyncRedis, redis_client: Redis) -> None:
    async with inbox_on(async_redis) as inbox:
        announcer = Announcer(store_on(async_redis), settings(), inbox, RefusalLog())
        with configured(redis_client, "maxmemory", "1"):
            for _ in range(2):
                with suppress(StoreRefusal):
                    await announcer.announce()
                assert len(said(redis_client)) == 1


async def test_why_redis_does_not_take_deliveries_is_said_until_it_takes_one(
    async_redis: AsyncRedis, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("credhook.receiver.command._ANNOUNCE_EVERY_SECONDS", 0.01)
    event = Event("openid4vc.issuance.completed", "r1")
    async with inbox_on(async_redis) as inbox:
        announcer = Announcer(store_on(async_redis), settings(), inbox, RefusalLog())
        keeping = asyncio.create_task(announcer.keep())
        with configured(redis_client, "maxmemory-policy", "allkeys-lru"):
            with pytest.raises(StoreUnavailable):
                await inbox.accept("m1", event)
            await until_async(lambda: ["set noeviction" in one["unavailable"] for one in said(redis_client)] == [True])
        await inbox.accept("m1", event)
        await until_async(lambda: [one["unavailable"] for one in said(redis_client)] == [""])
        keeping.cancel()
