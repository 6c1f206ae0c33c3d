"""`credhook status` on a real Redis, with real receivers and workers, as an operator types it."""

import json
import re
from pathlib import Path
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.ops.fleet import _strength
from credhook.store import SCHEMA, Keys
from credhook.worker.platform.limits import platform_key
from credhook.worker.process.admin import check_workers
from support.process.commands import Done, invoke
from support.process.serving import receiver
from support.receiver.floods import deliver
from support.receiver.signing import body
from support.redis.redis_server import configured
from support.store.accepting import accept, everything
from support.store.stored_events import plant_traffic
from support.store.stores import INDEX, job_id, store_on
from support.waiting import until
from support.worker.harness import DATA, Harness

WORKER: dict[str, Any] = {
    "version": "1", "host": "w", "pid": 1, "handlers": {}, "slots": 1, "in_flight": 0,
    "platform": {"key": "c"}, "config_fingerprint": {}, "started": True,
}  # fmt: skip


def status(redis_url: str, *options: str, **environment: str) -> Done:
    return invoke("status", *options, environment={"REDIS_URL": redis_url, **environment})


def facts(redis_url: str, **environment: str) -> Any:
    done = status(redis_url, "--json", **environment)
    assert done.stderr == ""
    assert not re.search("fingerprint|checks", done.stdout)
    found = json.loads(done.stdout)
    assert done.returncode == (1 if found["attention"] else 0)
    return found


def named(found: Any) -> list[str]:
    return [one["name"] for one in found["attention"]]


def test_a_fleet_that_is_well(harness: Harness, tmp_path: Path) -> None:
    url = harness.redis_url
    limited = configured(harness.redis, "maxmemory", "1gb")
    with limited, receiver(tmp_path, url) as server, harness.worker() as worker:
        until(lambda: '"worker_started"' in worker.text, what="the worker")
        assert deliver(server.port, "m", body(resource_id=harness.sandbox.make())) == 202
        harness.reaches("m", "done")
        found = facts(url)
        shown = status(url)
    assert found["attention"] == []
    (one,) = found["workers"]
    assert (one["in_flight"], one["slots"], list(one["handlers"])) == (0, 100, ["test.first"])
    assert 0 <= one["silent"] <= one["age"] < 3_600
    (platform,) = found["platforms"]  # From what the worker says: this command knows no platform.
    assert (platform["paused"], platform["open_breakers"], platform["passed"]) == (0, 0, None)
    assert found["counts"]["open"] == 0
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.endswith("\nall is well\n")
    assert "0/100 in flight  test.first" in shown.stdout


def test_status_draws_the_last_hour(redis_client: Redis, redis_url: str) -> None:
    plant_traffic(redis_client)
    page = status(redis_url).stdout
    drawn, sums = re.findall(r"^last hour {4}(\S{60})\n {13}(.*)$", page, re.MULTILINE)[0]
    assert "█" in drawn
    assert re.fullmatch(r"\d{4} arrived, \d{4} done, 140 failed attempts, 12 given up", sums)


def test_platform_says_since_when_a_breaker_is_open(redis_client: Redis, redis_url: str) -> None:
    now = int(redis_client.time()[0]) * 1_000
    here, elsewhere = ({"key": platform_key(f"http://127.0.0.1:{port}", "credhook")} for port in (9, 10))
    for name, platform, seconds in (("w1", here, 300.0), ("w2", here, 7.0), ("w3", elsewhere, 900.0)):
        text = json.dumps(WORKER | {"platform": platform, "breaker": "open", "breaker_seconds": seconds})
        redis_client.hset(INDEX.announcements, name, f"{now - 400_000} {now} {text}")
    found = [(platform["open_breakers"], platform["broken"]) for platform in facts(redis_url)["platforms"]]
    assert sorted(found) == [(1, 900.0), (2, 300.0)]
    assert "not paused, breaker open for 5 min, no rate limit" in status(redis_url).stdout


def test_status_leaves_the_platform_of_another_queue_out(redis_client: Redis, redis_url: str) -> None:
    now = int(redis_client.time()[0]) * 1_000
    for queue, url in (("credhook", "http://127.0.0.1:9"), ("other", "http://127.0.0.1:10")):
        announced = json.dumps(WORKER | {"platform": {"key": platform_key(url, queue)}})
        redis_client.hset(Keys(queue).announcements, "token", f"{now - 90_000} {now} {announced}")
        redis_client.sadd("rq:queues", Keys(queue).jobs)
    redis_client.set(f"{platform_key('http://127.0.0.1:10', 'other')}:pause", "300000 503", px=300_000)
    found = facts(redis_url)
    (platform,) = found["platforms"]
    assert (len(found["workers"]), platform["paused"], platform["cause"]) == (2, 0, "")
    assert "platform.breaker" not in named(found)


def test_status_names_each_problem_with_its_remedy(redis_client: Redis, redis_url: str) -> None:
    accept(redis_url, "m1", DATA, "r1")
    now = int(redis_client.time()[0]) * 1_000
    redis_client.zadd(INDEX.delayed, {"m1": now - 3_600_000})
    redis_client.zadd(INDEX.dead, {"m2": now, "m3": now - 2 * 86_400_000})
    redis_client.zadd(INDEX.unhandled + DATA, {"m4": now})
    redis_client.set("rq:suspended", 1)
    key = platform_key("http://127.0.0.1:9", "credhook")
    redis_client.set(f"{key}:pause", "300000 503", px=300_000)
    worker = WORKER | {"platform": {"key": key, "rate": 2.5}}
    for token, since, renewed, pid in (
        *(("token", 100_000_000, 0, 1), ("twin", 100_000_000, 0, 1)),
        *(("gone", 90_000, 80_000, 2), ("long ago", 90_000_000, 87_000_000, 3)),
    ):
        said = json.dumps(worker | {"pid": pid})
        redis_client.hset(INDEX.announcements, token, f"{now - since} {now - renewed} {said}")
    redis_client.sadd("rq:queues", Keys("other").jobs)
    redis_client.hset(Keys("other").announcements, "gone", f"{now - 90_000} {now - 20_000} {json.dumps(worker)}")
    redis_client.sadd("rq:workers", "rq:worker:stock", "rq:worker:gone")
    redis_client.hset("rq:worker:stock", "queues", "mails,typo")  # No list of RQ's has this queue.
    redis_client.zadd(Keys("typo").unhandled + DATA, {"m5": now})
    redis_client.zadd(Keys("other").quarantined, {"m6": now})
    found = facts(redis_url)
    expected = ["redis.maxmemory", "fleet.receivers", "fleet.missing", "fleet.queues", "platform.breaker"]
    assert named(found) == [*expected, *(f"events.{one}" for one in ("suspended", "oldest_open", "dead", "unhandled"))]
    assert list(found["others"]) == ["other", "typo"]
    assert ([one["pid"] for one in found["workers"]], [one["pid"] for one in found["missing"]]) == ([1, 1], [2])
    assert (found["counts"]["dead"], found["counts"]["dead_recently"]) == (2, 1)
    assert found["oldest_open"] >= 3_600
    (platform,) = found["platforms"]
    assert (platform["rate"], platform["cause"], 0 < platform["paused"] <= 300) == (2.5, "503", True)
    done = status(redis_url)
    assert done.returncode == 1
    assert len([line for line in done.stdout.splitlines() if line.startswith("attention: ")]) == len(named(found))


def test_status_ends_well_if_there_are_only_notes(redis_client: Redis, redis_url: str) -> None:
    now = int(redis_client.time()[0]) * 1_000
    forged = {"signature": {"count": 9, "since": 60, "ago": 1}}
    receiving = {"queue": "credhook", "version": "1", "host": "r", "durability": "standard", "config_fingerprint": {}}
    text = json.dumps(receiving | {"idle": 0, "refusals": forged})
    redis_client.hset(INDEX.receivers, "r", f"{now} {now} {text}")
    with configured(redis_client, "maxmemory", "1gb"):
        found, done = facts(redis_url), status(redis_url)
    assert ([note["name"] for note in found["notes"]], found["attention"]) == (["fleet.forged"], [])
    assert done.returncode == 0


def test_status_reports_a_silent_redis_in_one_line() -> None:
    url = "redis://127.0.0.1:1/0"
    found, done = facts(url), status(url)
    assert (found["queue"], named(found)) == ("credhook", ["redis.reached"])
    assert (done.returncode, done.stdout.count("\n")) == (1, 1)
    assert "nothing listens there: check REDIS_URL" in done.stdout


def test_status_reports_only_that_data_are_another_versions(redis_client: Redis, redis_url: str) -> None:
    redis_client.set(INDEX.schema, 99)
    redis_client.hset(INDEX.announcements, "token", "in another layout")
    found, done = facts(redis_url), status(redis_url)
    assert [name for name in named(found) if name != "redis.maxmemory"] == ["redis.schema"]
    assert done.returncode == 1
    assert f"schema 99 and this one knows {SCHEMA}: start that version, or choose another" in done.stdout


def test_missing_workers_are_acknowledged_by_command(redis_client: Redis, redis_url: str) -> None:
    now = int(redis_client.time()[0]) * 1_000
    for name, renewed in (("w.s.1", 0), ("w.s.2", 80_000), ("w.s.3", 90_000)):
        worker = json.dumps(WORKER | {"platform": {"key": platform_key("http://127.0.0.1:9", "credhook")}})
        redis_client.hset(INDEX.announcements, name, f"{now - 900_000} {now - renewed} {worker}")
    assert "fleet.missing" in named(facts(redis_url))
    assert "missing" not in status(redis_url, "--acknowledge").stdout
    assert redis_client.hkeys(INDEX.announcements) == [b"w.s.1"]
    assert "fleet.missing" not in named(facts(redis_url))


def test_status_costs_the_same_on_a_full_store_and_writes_nothing(redis_client: Redis, redis_url: str) -> None:
    asked = []
    for number in (200, 5_000):
        pipeline = redis_client.pipeline(transaction=False)
        pipeline.zadd(INDEX.open, {f"m{one}": one for one in range(number)})
        pipeline.zadd(INDEX.dead, {f"d{one}": one for one in range(number)})
        pipeline.rpush(INDEX.jobs, *[job_id(f"m{one}") for one in range(number)])
        pipeline.execute()
        before = everything(redis_client)
        redis_client.config_resetstat()
        assert facts(redis_url)["oldest_open"] > 3_600  # None of them has been claimed.
        stats: Any = redis_client.info("commandstats")
        asked.append({name: one["calls"] for name, one in stats.items()})
        assert everything(redis_client) == before
    assert asked[0] == asked[1]


def test_redis_is_judged_by_the_strongest_of_the_receivers_promises(redis_url: str, redis_client: Redis) -> None:
    now = redis_client.time()[0] * 1_000
    said = {"queue": "credhook", "version": "1", "host": "r", "config_fingerprint": {}}
    for name, ago in (("replicated", 0), ("replicated:3", 20_000), ("standard", 0), ("replicated:4", 80_000)):
        text = json.dumps({**said, "durability": name})
        redis_client.hset(INDEX.receivers, name, f"{now - ago} {now - ago} {text}")
    assert any("0 of 3 replicas" in str(one) for one in facts(redis_url)["attention"])
    assert max(("standard", "replicated:3", "strict"), key=_strength) == "strict"


async def test_a_worker_is_ready_once_all_of_its_processes_have_started(async_redis: AsyncRedis) -> None:
    for announced, tokens, passed in (
        ({}, [], False),
        ({}, ["one"], False),
        ({"one": False}, ["one"], False),
        ({"one": True}, ["one", "two"], False),
        ({"one": True, "two": False}, ["one", "two"], False),
        ({"one": True, "two": True}, ["one", "two"], True),
    ):
        for token, started in announced.items():
            said = f"1 2 {json.dumps(WORKER | {'started': started})}"
            await async_redis.hset(INDEX.announcements, token, said)
        assert (await check_workers(store_on(async_redis), tokens)).passed is passed
