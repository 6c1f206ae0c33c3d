"""Receivers announce themselves in Redis: which there are, what they write to, and how much they take."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from accepting import inbox_on
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis_keys import RECEIVERS
from serving import receiver
from signing import SECRET, body, headers
from store_rules import wrong_expiries
from stores import store_on
from waiting import until, until_async

from credhook.events import Event
from credhook.receiver.app import RefusalLog
from credhook.receiver.command import Announcer
from credhook.receiver.inbox import Inbox, StoreUnavailable
from credhook.receiver.settings import ReceiverSettings
from credhook.store.announcements import announced


def said(redis: Redis) -> list[dict[str, Any]]:
    return [json.loads(one.text) for one in announced(redis.hgetall(RECEIVERS))]


def test_it_says_what_it_is_and_nothing_that_is_secret(tmp_path: Path, redis_client: Redis, redis_url: str) -> None:
    began = time.monotonic()
    with receiver(tmp_path, redis_url, CREDHOOK_PATH_SECRET="p" * 30) as server:
        (one,) = until(lambda: said(redis_client), what="the announcement")
        assert (one["queue"], one["durability"], one["acknowledged"]) == ("credhook", "strict", 0)
        text = str(redis_client.hgetall(RECEIVERS))
        assert "whsec" not in text
        assert "ppp" not in text
        assert wrong_expiries(redis_client, began=began, retention=604_800) == []
        assert server.stop() == 0
    assert said(redis_client) == []  # It has said farewell.


def test_receivers_with_different_settings_can_be_told_from_each_other_and_their_secrets_cannot(
    tmp_path: Path, redis_client: Redis, redis_url: str
) -> None:
    folders = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    for folder in folders:
        folder.mkdir()
    with (
        receiver(folders[0], redis_url),
        receiver(folders[1], redis_url, CREDHOOK_WEBHOOK_SECRETS="whsec_" + "b" * 40),
        receiver(folders[2], redis_url, CREDHOOK_RETENTION="700000"),
    ):
        all_of_them = until(lambda: said(redis_client) if len(said(redis_client)) == 3 else [], what="all three")
    alike = [one["config_fingerprint"] for one in all_of_them]
    assert sorted(Counter(str(one) for one in alike).values()) == [1, 2]
    assert len({one["CREDHOOK_RETENTION"] for one in alike}) == 2
    assert {len(digest) for one in alike for digest in one.values()} == {4}


def test_what_it_has_acknowledged_is_counted_round_by_round(
    tmp_path: Path, redis_client: Redis, redis_url: str
) -> None:
    with receiver(tmp_path, redis_url) as server:
        until(lambda: said(redis_client), what="the announcement")
        with httpx.Client() as client:
            client.post(server.url, headers={"user-agent": "credhook-doctor"})
            for content in (body(), body(resource_id="iss_2")):
                client.post(server.url, content=content, headers=headers("m0", content)).raise_for_status()
            client.post(server.url.removesuffix("s"), content=body(), headers=headers("m", body()))
            for number in range(5):
                client.post(server.url, content=body(), headers=headers(f"m{number}", body())).raise_for_status()
        counted = until(
            lambda: [one for one in said(redis_client) if one["acknowledged"] == 7], what="the round after them"
        )
    assert counted[0]["idle"] is not None
    assert counted[0]["other_refusals"] == {"path": 1}
    assert counted[0]["conflicts"] == 1
    assert counted[0]["idle"] <= counted[0]["conflicted"] < 60  # Seconds ago.


async def test_a_delivery_is_counted_in_one_round_alone(
    async_redis: AsyncRedis, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDHOOK_WEBHOOK_SECRETS", SECRET)
    monkeypatch.setattr("credhook.receiver.command._ANNOUNCE_EVERY_SECONDS", 0.01)
    async with inbox_on(async_redis) as inbox:
        announcer = Announcer(store_on(async_redis), ReceiverSettings(), inbox, RefusalLog())
        await inbox.accept("m1", Event("openid4vc.issuance.completed", "r1"))
        keeping = asyncio.create_task(announcer.keep())
        await until_async(lambda: [one for one in said(redis_client) if not one["acknowledged"]], what="a quiet round")
        keeping.cancel()
        assert said(redis_client)[0]["idle"] is not None


async def test_why_redis_does_not_take_deliveries_is_said_until_it_takes_one(
    async_redis: AsyncRedis, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDHOOK_WEBHOOK_SECRETS", SECRET)
    event = Event("openid4vc.issuance.completed", "r1")

    async def announced_by(inbox: Inbox) -> str:
        announcer = Announcer(store_on(async_redis), ReceiverSettings(), inbox, RefusalLog())
        keeping = asyncio.create_task(announcer.keep())
        found = await until_async(lambda: said(redis_client), what="the announcement")
        keeping.cancel()
        await announcer.leave()
        return str(found[0]["unavailable"])

    async with inbox_on(async_redis) as inbox:
        redis_client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(StoreUnavailable):
                await inbox.accept("m1", event)
            assert "would drop events; set noeviction" in await announced_by(inbox)
        finally:
            redis_client.config_set("maxmemory-policy", "noeviction")
        await inbox.accept("m1", event)
        assert await announced_by(inbox) == ""
