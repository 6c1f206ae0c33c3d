"""The benchmark itself, small: it runs, and it finds out competitors that do not do the work."""

import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accepting import inbox_on
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.events import Event
from credhook.receiver.inbox import MAX_GROUP

if sys.platform != "linux" or shutil.which("wrk") is None:
    pytest.skip("the benchmark needs Linux and wrk (Debian: apt install wrk)", allow_module_level=True)

from bench.competitors import BARE, BULLMQ_CROWDED, GROUPED, HTTPX, OURS, STRICT
from bench.deliveries import sign
from bench.environments import ROOT, SCRATCH
from bench.ingest import LOADS, run, written
from bench.machine import RunFailed
from bench.programs.grouped_writes import SIZE
from bench.work import Plan, measure

PLAN = Plan(latency=0.0, events=20, seconds=1.0, limit=10.0, patience=0.1)

FETCHES_TWICE = """
import os, time, urllib.request
for _ in "twice":
    urllib.request.urlopen(os.environ["API_URL"] + "/me-creds/api/credentials/iss_0").read()
time.sleep(60)
"""


def bench(part: str, out: Path) -> tuple[str, dict[str, Any]]:
    """Run a part, small. Return its output and its results."""
    command = [sys.executable, "-m", f"bench.{part}", "--out", str(out), *(["--small"] if part != "sizing" else [])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = out / f"{part}.json"
    return done.stdout, json.loads(results.read_text()) if results.exists() else {}


def test_the_parts_measure_credhook_beside_the_limits(tmp_path: Path) -> None:
    said, results = bench("ingest", tmp_path)
    assert set(results["throughput"]) == {STRICT.name, BARE.name, GROUPED.name}
    for loads in results["latency"].values():
        assert list(loads) == [str(load) for load in LOADS]
        assert all(0 < one["p50"] <= one["p99"] for rounds in loads.values() for one in rounds)
    assert {name: len(rounds) for name, rounds in results["same_rate"].items()} == {BARE.name: 1, GROUPED.name: 1}
    assert all(one["written"] >= SIZE for one in results["throughput"][GROUPED.name])
    assert "credhook, strict / bare Starlette" in said

    said, results = bench("work", tmp_path)
    assert set(results["throughput"]) == set(results["latencies"]["0"]) == {OURS.name, HTTPX.name}
    (measured,) = results["end_to_end"]
    assert measured["handled"] == measured["deliveries"] == 10
    assert 0 < measured["p50"] <= measured["p99"] < math.inf
    assert "credhook / bare httpx" in said
    assert "| credhook |" in (tmp_path / "work.md").read_text()

    said, _ = bench("sizing", tmp_path)
    assert "100,000,000" in said
    files = {f"{part}.{end}" for part in ("ingest", "work") for end in ("json", "md")}
    assert {path.name for path in tmp_path.iterdir()} == {*files, "sizing.md"}


async def test_the_grouped_write_is_of_as_many_bytes_as_ours(async_redis: AsyncRedis, redis_client: Redis) -> None:
    """In one group as large as they become, once the connection is there."""
    events = [Event("openid4vc.issuance.completed", f"iss_{n:024x}") for n in range(MAX_GROUP + 1)]
    async with inbox_on(async_redis) as inbox:
        await inbox.accept("msg_first", events.pop())
        before = written(redis_client)
        await asyncio.gather(*(inbox.accept(f"msg_{n:024x}", event) for n, event in enumerate(events)))
    assert (written(redis_client) - before) / MAX_GROUP == pytest.approx(SIZE, rel=0.05)


def test_a_server_that_does_not_do_the_work_is_found_out(tmp_path: Path) -> None:
    idler = replace(BARE, title="an idler", jobs="rq:queue:credhook", verifies=True)
    found = r"an idler: a forged, a first and a repeated delivery gave \[202, 202, 202\] and 0 jobs"
    (tmp_path / "run").mkdir()
    deliveries = sign(tmp_path / "deliveries", 10)
    with pytest.raises(RunFailed, match=found), run(idler, deliveries, tmp_path / "run", connections=1):
        pass


def test_a_worker_that_fetches_an_event_twice_is_found_out(tmp_path: Path) -> None:
    hasty = replace(HTTPX, arguments=("-c", FETCHES_TWICE))
    with pytest.raises(RunFailed, match=r"bare httpx: 5 requests were made for 1 events"):
        measure(hasty, replace(PLAN, events=5), tmp_path)


def test_a_slow_worker_is_measured_until_its_time_is_up(tmp_path: Path) -> None:
    slow = replace(PLAN, latency=0.1, events=1_000, seconds=1_000.0, limit=3.0)
    measured = measure(replace(HTTPX, slots=1), slow, tmp_path)
    assert 1 <= measured["events"] < 100
    assert not measured["whole"]


def test_bullmq_fetches_each_event_once(tmp_path: Path) -> None:
    if not (SCRATCH / "node" / ".installed").exists():
        pytest.skip("`make bench` installs its packages, if there is Node")
    measured = measure(BULLMQ_CROWDED, replace(PLAN, limit=60.0, patience=60.0), tmp_path)
    assert measured["whole"]
    assert measured["events"] == PLAN.events
