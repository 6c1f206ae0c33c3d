"""Receivers announce themselves in Redis: which there are, what they write to, and how much they take."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from structlog.testing import capture_logs

from credhook.events import Event
from credhook.listener.admin import bind_setting
from credhook.metrics.figures import QueueFigures
from credhook.receiver.app import RefusalLog, Spell, create_app
from credhook.receiver.command import _COMPARE, Announcer, _serve
from credhook.receiver.inbox import StoreUnavailable
from credhook.settings import ReceiverSettings
from credhook.store.announcements import announced
from support.process.fake_children import own_signals
from support.process.serving import receiver
from support.receiver.floods import deliver
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
        assert (one["queue"], one["durability"], one["acknowledged"]) == ("credhook", "strict", 0)
        assert [one[name] for name in ("idle", "turned_away_ago", "conflicted")] == [None] * 3
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


def test_receiver_announces_itself_again_after_a_defect(
    redis_url: str, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce, errors = Announcer.announce, [ZeroDivisionError()]

    async def fails_once(announcer: Announcer) -> None:
        if errors:
            raise errors.pop()
        await announce(announcer)

    def stop() -> None:
        try:
            until(lambda: said(redis_client), what="the announcement")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Announcer, "announce", fails_once)
    with own_signals(), bind_setting("127.0.0.1:0", "PORT") as listener, capture_logs() as logs:
        Thread(target=stop).start()
        _serve(settings(REDIS_URL=redis_url), listener)
    assert [line["log_level"] for line in logs if line["event"] == "background_task_failed"] == ["error"]


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
            for sent in (headers("m", body()), {"svix-id": "m"}):
                await client.post("/webhook", content=body(), headers=sent)
            await client.post("/webhooks", content=body(), headers=headers("m", body(), at=expired))
            await client.post("/webhooks", content=body(), headers=headers("m", body(), secret=OTHER_SECRET))
        assert 0 < (REGISTRY.get_sample_value(took) or 0.0) - before < time.monotonic() - began
        refusals.turn_away("slow_request")
        await asyncio.sleep(0.2)
        await announcer.announce()
        (first,) = said(redis_client)
        await announcer.announce()
        (quiet,) = said(redis_client)
    assert (first["acknowledged"], quiet["acknowledged"]) == (3, 0)
    assert first["seconds"] + quiet["seconds"] <= time.monotonic() - began + 0.001  # Each second is in one round.
    for one in (first, quiet):
        assert (one["conflicts"], one["accepted"]) == (1, 3)
        assert {rule: each["count"] for rule, each in one["refusals"].items()} == {
            "path": 2,
            "clock": 1,
            "signature": 1,
        }
        refused = one["refusals"]["signature"]["ago"]
        assert 0 <= refused <= one["idle"] <= one["conflicted"] < 60  # Seconds ago.
        assert one["turned_away"] == {"slow_request": 1}
        assert 0 <= one["turned_away_ago"] <= refused


async def test_full_redis_still_takes_announcements(async_redis: AsyncRedis, redis_client: Redis) -> None:
    async with inbox_on(async_redis) as inbox:
        announcer = Announcer(store_on(async_redis), settings(), inbox, RefusalLog())
        with configured(redis_client, "maxmemory", "1"):
            for _ in range(2):
                await announcer.announce()
                assert len(said(redis_client)) == 1


async def test_receiver_announces_itself_beside_a_damaged_announcement(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    now = redis_client.time()[0] * 1_000
    redis_client.hset(INDEX.receivers, "damaged", f"{now} {now} [")
    async with inbox_on(async_redis) as inbox:
        await Announcer(store_on(async_redis), settings(), inbox, RefusalLog()).announce()
    assert redis_client.hlen(INDEX.receivers) == 2


async def test_receiver_that_alone_refuses_everything_is_not_ready(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    refusals, right, wrong, content = RefusalLog(), settings(), settings(CREDHOOK_WEBHOOK_SECRETS=OTHER_SECRET), body()
    async with inbox_on(async_redis) as inbox, inbox_on(async_redis) as other:
        neighbour, announcer = (
            Announcer(store_on(async_redis), one, box, log)
            for one, box, log in ((right, other, RefusalLog()), (wrong, inbox, refusals))
        )
        app = create_app(wrong, inbox, refusals, examine=announcer.examine)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://inbox") as client:

            async def refuse(number: int) -> None:
                for _ in range(number):
                    assert (
                        await client.post("/webhooks", content=content, headers=headers("m", content))
                    ).status_code == 401

            async def status_after(accepted: int) -> int:
                for number in range(accepted):
                    await other.accept(f"n{other.acknowledged + number}", Event("openid4vc.issuance.completed", "r1"))
                await neighbour.announce()
                await announcer.announce()
                return (await client.get("/readyz")).status_code

            assert await status_after(50) == 200
            await refuse(10)
            assert await status_after(0) == 200  # Nobody accepts: it may be a flood.
            with capture_logs() as logs:
                assert await status_after(20) == 503
            assert (logs[-1]["event"], logs[-1]["hint"]) == ("receiver_refuses_alone", _COMPARE)
            assert [one["refuses_alone"] for one in said(redis_client)] == [False, True]
            scrape = {family.name: family.samples[0].value for family in await QueueFigures(store_on(async_redis))()}
            assert scrape["credhook_receivers_refusing"] == 1
            await inbox.accept("mine", Event("openid4vc.issuance.completed", "r1"))
            with capture_logs() as logs:
                assert await status_after(0) == 200
            assert [line["event"] for line in logs] == ["receiver_ready"]
            await refuse(10)
            refusals.spells["path"] = Spell(1, 0.0, time.monotonic() - 301)  # A stray request, long ago.
            assert await status_after(20) == 503
            assert await status_after(0) == 503
            refusals.spells["signature"] = Spell(10, 0.0, time.monotonic() - 301)
            assert await status_after(0) == 200  # It tries again.


def test_receiver_process_that_alone_refuses_everything_is_not_ready(
    tmp_path: Path, redis_client: Redis, redis_url: str
) -> None:
    neighbour = {"queue": "credhook", "version": "1", "host": "n", "durability": "strict", "config_fingerprint": {}}

    def accept(number: int) -> None:
        now = redis_client.time()[0] * 1_000
        text = json.dumps(neighbour | {"accepted": number})
        redis_client.hset(INDEX.receivers, "neighbour", f"{now} {now} {text}")

    accept(0)
    with receiver(tmp_path, redis_url, CREDHOOK_WEBHOOK_SECRETS=OTHER_SECRET) as server:
        until(lambda: len(said(redis_client)) == 2, what="the announcement")
        assert [deliver(server.port, "m", body()) for _ in range(10)] == [401] * 10
        accept(20)
        ready = server.url.replace("/webhooks", "/readyz")
        until(lambda: httpx.get(ready).status_code == 503, what="/readyz that is not ready")


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
