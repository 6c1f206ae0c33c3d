"""What a scrape asks Redis: the queue's figures and the platform's, from each target, without writing."""

import json
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
import trustme
from prometheus_client import CollectorRegistry
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.listener.admin import create_admin
from credhook.metrics.figures import TargetFigures
from credhook.store import Keys, State
from credhook.store.health import Check, ask, examine
from credhook.worker.platform.limits import FleetLimits, platform_key
from credhook.worker.process.admin import PlatformFigures, check_workers
from support.process.scraping import Scrape, well_formed, worker_settings
from support.redis.redis_server import configured
from support.store.stored_events import plant, plant_many
from support.store.stores import INDEX, job_id, store_on

QUEUE_WIDE = {
    "credhook_events",
    "credhook_queue_length",
    "credhook_oldest_open_event_age_seconds",
    "credhook_workers",
    "credhook_redis_memory_used_bytes",
    "credhook_redis_memory_limit_bytes",
}
PLATFORM_WIDE = {"credhook_platform_pause_seconds"}
SETTINGS = worker_settings()


class Target:
    """A worker's admin listener, as worker/process/admin.py puts it together."""

    def __init__(self, redis: AsyncRedis) -> None:
        store = store_on(redis)
        examining = partial(examine, partial(ask, store), durability="standard")
        others = TargetFigures(examining, part="worker"), PlatformFigures(store, SETTINGS)
        app = create_admin(store, examining, registry=CollectorRegistry(), others=others)
        self._transport = httpx.ASGITransport(app)

    async def scrape(self) -> Scrape:
        async with httpx.AsyncClient(transport=self._transport, base_url="http://admin") as client:
            return Scrape((await client.get("/metrics")).text)


@pytest.fixture
async def target(async_redis: AsyncRedis) -> Target:
    return Target(async_redis)


async def test_no_event_stands_in_two_places(target: Target, redis_client: Redis) -> None:
    assert (await target.scrape()).value("credhook_oldest_open_event_age_seconds") == 0
    for number in range(12):
        plant(redis_client, f"open{number}", State.ACCEPTED, resource=f"r{number}", age=300 * number)
    redis_client.rpush(INDEX.jobs, *(job_id(f"open{number}") for number in range(5)))
    redis_client.zadd(INDEX.leases, {"open5": 1, "open6": 1})
    redis_client.zadd(INDEX.scheduled, {job_id("open7"): 1, job_id("open8"): 1, job_id("open9"): 1})
    for number in range(3):
        plant(redis_client, f"dead{number}", State.DEAD, age=9_000)
    plant(redis_client, "gone", State.DATA_GONE)
    for number in range(2):
        plant(redis_client, f"unhandled{number}", State.UNHANDLED)
    plant(redis_client, "new", State.QUARANTINED, kind="of.tomorrow")
    scrape = await target.scrape()
    assert scrape.series("credhook_events") == {
        ("queued",): 5, ("leased",): 2, ("waiting",): 3, ("postponed",): 0, ("blocked",): 2,
        ("dead",): 4, ("unhandled",): 2, ("quarantined",): 1, ("unreadable",): 0,
    }  # fmt: skip
    assert scrape.total("credhook_events") == 12 + 7
    assert scrape.value("credhook_queue_length") == 5
    assert scrape.value("credhook_redis_memory_limit_bytes") == 0
    assert (scrape.value("credhook_redis_memory_used_bytes") or 0) > 0
    info = redis_client.info()  # The sizes are larger by what was written since.
    for name, field in (("memory_used", "used_memory"), ("aof", "aof_current_size")):
        assert 0.5 * info[field] < (scrape.value(f"credhook_redis_{name}_bytes") or 0) < 2 * info[field]
    assert 3_300 <= (scrape.value("credhook_oldest_open_event_age_seconds") or 0) < 4_200
    assert well_formed(scrape)
    redis_client.rpush(INDEX.jobs, *["left over"] * 9)  # A job outlives an event that was erased, or is there twice.
    scrape = await target.scrape()
    assert scrape.value("credhook_events", "blocked") == 0
    assert scrape.value("credhook_events", "queued") == scrape.value("credhook_queue_length") == 12 - 2 - 3
    assert scrape.total("credhook_events") == 12 + 7


async def test_workers_are_counted_by_version_while_they_announce_themselves(
    target: Target, async_redis: AsyncRedis, redis_client: Redis
) -> None:
    assert not (await check_workers(store_on(async_redis), [])).passed  # None of its processes has started.
    assert (await target.scrape()).series("credhook_workers") == {("unknown",): 0}
    for token, version, seconds in (("a", "1.2.0", 0), ("b", "1.2.0", 0), ("c", "1.3.0rc1", 0), ("gone", "1.1.0", 16)):
        said = int((time.time() - seconds) * 1_000)
        redis_client.hset(INDEX.announcements, token, f"{said} {said} " + json.dumps({"version": version}))
    found = (await target.scrape()).series("credhook_workers")
    assert found == {("1.2.0",): 2, ("1.3.0rc1",): 1}


async def test_receivers_are_counted_by_version_while_they_announce_themselves(
    target: Target, redis_client: Redis
) -> None:
    assert (await target.scrape()).series("credhook_receivers") == {("unknown",): 0}
    for token, version, seconds in (("a", "1.2.0", 0), ("b", "1.2.0", 0), ("c", "1.3.0rc1", 0), ("gone", "1.1.0", 61)):
        said = int((time.time() - seconds) * 1_000)
        redis_client.hset(INDEX.receivers, token, f"{said} {said} " + json.dumps({"version": version}))
    found = (await target.scrape()).series("credhook_receivers")
    assert found == {("1.2.0",): 2, ("1.3.0rc1",): 1}


async def test_events_in_a_queue_without_workers_are_counted_by_queue(target: Target, redis_client: Redis) -> None:
    plant_many(redis_client, 2, State.ACCEPTED)
    for queue, beat in (("typo", None), ("left", 20), ("well", 0), ("empty", None)):
        redis_client.sadd("rq:queues", f"rq:queue:{queue}")
        if queue != "empty":
            redis_client.zadd(Keys(queue).open, {"m1": 1})
        if beat is not None:
            redis_client.zadd(Keys(queue).heartbeats, {"w": int(time.time() - beat) * 1_000, "long ago": 1})
    redis_client.sadd("rq:queues", INDEX.jobs)
    found = (await target.scrape()).series("credhook_forsaken_events")
    assert found == {("typo",): 1, ("left",): 1, ("credhook",): 2}


async def test_pause_of_the_platform(target: Target, async_redis: AsyncRedis, redis_client: Redis) -> None:
    scrape = await target.scrape()
    assert scrape.value("credhook_platform_pause_seconds") == scrape.value("credhook_workers_suspended") == 0
    redis_client.set("rq:suspended", 1)
    limits = FleetLimits(store_on(async_redis), SETTINGS.api_url, rate=None, longest_wait=1.0)
    await limits.pause(300, "503", answers=0)
    scrape = await target.scrape()
    assert 0 < (scrape.value("credhook_platform_pause_seconds") or 0) <= 300
    assert scrape.value("credhook_workers_suspended") == 1


@pytest.mark.parametrize(
    ("rate", "passed", "limit"), [(None, None, 0), (5.0, None, 5.0), (None, 2.5, 2.5), (5.0, 2.5, 2.5), (2.0, 2.5, 2.0)]
)
async def test_rate_limit_is_the_lower_of_the_setting_and_what_passed(
    async_redis: AsyncRedis, redis_client: Redis, rate: float | None, passed: float | None, limit: float
) -> None:
    settings = SETTINGS.model_copy(update={"rate": rate})
    if passed is not None:
        redis_client.set(f"{platform_key(settings.api_url, settings.queue)}:pace", f"60000 {passed}", px=60_000)
    figures = await PlatformFigures(store_on(async_redis), settings)()
    (shown,) = [metric.samples[0].value for metric in figures if metric.name == "credhook_platform_rate_limit"]
    assert shown == limit


async def test_each_target_exports_the_figures_of_its_queue(async_redis: AsyncRedis, redis_client: Redis) -> None:
    plant_many(redis_client, 7, State.DEAD)
    for target in (Target(async_redis), Target(async_redis)):
        scrape = await target.scrape()
        assert scrape.names >= QUEUE_WIDE | PLATFORM_WIDE
        assert scrape.value("credhook_events", "dead") == 7


async def test_each_series_names_the_queue_of_its_target(target: Target, redis_client: Redis) -> None:
    redis_client.sadd("rq:queues", "rq:queue:typo")
    redis_client.zadd(Keys("typo").open, {"m1": 1})
    series = [line for line in (await target.scrape()).text.splitlines() if line.startswith("credhook_")]
    assert 'credhook_forsaken_events{queue="typo"} 1.0' in series
    assert {line for line in series if 'queue="credhook"' not in line} == {'credhook_forsaken_events{queue="typo"} 1.0'}


def seen(monitor: Any) -> list[list[str]]:
    """The commands until the mark."""
    commands = iter(lambda: str(monitor.next_command()["command"]).split(), ["ECHO", "end"])
    return [words for words in commands if words[0] not in {"HELLO", "CLIENT", "SELECT"}]  # A new connection's first.


async def test_scrape_costs_the_same_on_a_full_store_and_writes_nothing(target: Target, redis_client: Redis) -> None:
    asked = []
    for planted in (0, 200, 5_000):
        redis_client.delete(INDEX.by_time)  # It lists events in the order of receipt.
        plant_many(redis_client, planted, State.ACCEPTED)
        if planted:
            redis_client.rpush(INDEX.jobs, *(job_id(f"msg_{number:05}") for number in range(planted)))
        await target.scrape()
        with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]  # redis-py's gap
            await target.scrape()
            redis_client.echo("end")
            asked.append(seen(monitor))
    flags = {name.upper(): command["flags"] for name, command in redis_client.command().items()}
    commands = {words[0].upper() for one in asked for words in one} - {"EVALSHA"}  # Its commands are seen as well.
    assert {name for name in commands if {"write", "may_replicate"} & set(flags[name])} == set()
    assert commands <= {
        "EXISTS", "GET", "PTTL", "HGET", "HGETALL", "HMGET", "INFO", "CONFIG", "LLEN", "MULTI", "EXEC", "TIME",
        "SMEMBERS", "ZCARD", "ZCOUNT", "ZRANGE", "ZREVRANGE",
    }  # fmt: skip
    assert len(asked[0]) == len(asked[1]) == len(asked[2])


async def test_without_redis_there_are_no_figures_rather_than_wrong_ones() -> None:
    async with AsyncRedis(host="127.0.0.1", port=1) as nobody:
        scrape = await Target(nobody).scrape()
    assert scrape.names == {"credhook_up", "credhook_build_info", "credhook_redis_up"}
    assert scrape.value("credhook_up", "worker") == scrape.value("credhook_redis_up") == 0


async def test_scrape_omits_only_figures_that_redis_denies(redis_client: Redis, redis_url: str) -> None:
    redis_client.sadd("rq:queues", "rq:queue:closed")
    redis_client.execute_command("ACL SETUSER limited reset on >pw ~credhook:credhook:* ~rq:* &* +@all -info")  # type: ignore[no-untyped-call]
    async with AsyncRedis.from_url(redis_url.replace("//", "//limited:pw@")) as limited:
        target = Target(limited)
        scrape = await target.scrape()
    redis_client.execute_command("ACL DELUSER limited")  # type: ignore[no-untyped-call]
    assert QUEUE_WIDE - scrape.names == {name for name in QUEUE_WIDE if "memory" in name}


async def test_scrape_names_unsafe_settings_of_redis(target: Target, redis_client: Redis) -> None:
    def wrong(scrape: Scrape) -> set[tuple[str, ...]]:
        return {labels for labels, value in scrape.series("credhook_redis_check").items() if not value}

    assert wrong(await target.scrape()) <= {("maxmemory", "warning")}
    with configured(redis_client, "maxmemory-policy", "allkeys-lru"):
        scrape = await target.scrape()
    assert wrong(scrape) - {("maxmemory", "warning")} == {("noeviction", "critical")}
    assert scrape.value("credhook_up", "worker") == 0
    assert scrape.value("credhook_redis_up") == 1


async def test_metrics_show_the_certificate_in_use(tmp_path: Path) -> None:
    certificate, unexamined = tmp_path / "certificate.pem", AsyncMock(return_value=(Check("workers", False, ""),))

    def renew(year: int) -> None:
        issued = trustme.CA().issue_cert("h", not_after=datetime(year, 1, 1, tzinfo=UTC))
        issued.cert_chain_pems[0].write_to_path(str(certificate))

    renew(2031)
    targets = [TargetFigures(unexamined, part=part, certificate=certificate) for part in ("worker", "receiver")]
    renew(2032)
    expiries = [(await target())[-1].samples[0].value for target in targets]
    assert [datetime.fromtimestamp(one, UTC).year for one in expiries] == [2031, 2032]
    assert "credhook_redis_check" not in {family.name for family in await targets[0]()}
    certificate.write_bytes(b"")  # While the next one is written.
    assert (await targets[1]())[-1].samples[0].value == expiries[1]
