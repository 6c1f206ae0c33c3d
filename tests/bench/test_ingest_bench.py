"""The benchmark itself, small: that it runs, and that it believes nobody."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from accepting import inbox_on
from bench.competitors import BARE, GROUPED, STRICT
from bench.deliveries import sign
from bench.environments import ROOT
from bench.programs.grouped_writes import SIZE
from bench.results import LOADS, Results
from bench.run import RunFailed, run, written
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.events import Event
from credhook.receiver.inbox import MAX_GROUP

IDLER = replace(BARE, title="an idler", jobs="rq:queue:credhook", verifies=True)


def bench(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bench.ingest", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_one_command_measures_the_receiver_beside_the_limit(tmp_path: Path) -> None:
    """With wrk where it is installed; elsewhere our own generator makes the load."""
    done = bench("--small", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    results = Results.read(tmp_path / "ingest.json")
    for name in (STRICT.name, BARE.name, GROUPED.name):
        assert results.rate(name) > 0
        assert list(results.latency[name]) == [str(part) for part in LOADS]
        assert all(0 < one.p50 <= one.p99 for rounds in results.latency[name].values() for one in rounds)
    assert {name: len(rounds) for name, rounds in results.same_rate.items()} == {BARE.name: 1, GROUPED.name: 1}
    assert all(one.written >= SIZE for one in results.throughput[GROUPED.name])
    assert "credhook, strict / bare Starlette" in done.stdout
    assert "| credhook, strict |" in (tmp_path / "ingest.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"ingest.json", "ingest.md"}


async def test_the_grouped_write_is_of_as_many_bytes_as_ours(async_redis: AsyncRedis, redis_client: Redis) -> None:
    """In one group as large as they become, once the connection is there."""
    events = [Event("openid4vc.issuance.completed", f"iss_{n:024x}") for n in range(MAX_GROUP + 1)]
    async with inbox_on(async_redis) as inbox:
        await inbox.accept("msg_first", events.pop())
        before = written(redis_client)
        await asyncio.gather(*(inbox.accept(f"msg_{n:024x}", event) for n, event in enumerate(events)))
    assert (written(redis_client) - before) / MAX_GROUP == pytest.approx(SIZE, rel=0.05)


def test_a_server_that_does_not_do_the_work_is_found_out(tmp_path: Path) -> None:
    found = r"an idler: a forged, a first and a repeated delivery gave \[202, 202, 202\] and 0 jobs"
    (tmp_path / "run").mkdir()
    with (
        pytest.raises(RunFailed, match=found),
        run(IDLER, sign(tmp_path / "deliveries", 10), tmp_path / "run", connections=1),
    ):
        pass
