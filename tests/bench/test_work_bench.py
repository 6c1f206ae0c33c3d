"""The worker's benchmark itself, small: that it runs, and that it believes nobody."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench.environments import ROOT, SCRATCH
from bench.run import RunFailed
from bench.work.competitors import BULLMQ_CROWDED, LIMIT, OURS
from bench.work.results import Results, rate
from bench.work.run import Terms, run

TERMS = Terms(latency=0.0, events=20, seconds=1.0, limit=10.0, patience=0.1)

FETCHES_TWICE = """
import os, time, urllib.request
for _ in "twice":
    urllib.request.urlopen(os.environ["API_URL"] + "/me-creds/api/credentials/iss_0").read()
time.sleep(60)
"""


def test_one_command_measures_the_worker_beside_the_limit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.work", "--small", "--out", str(tmp_path)]
    environment = {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = Results.read(tmp_path / "work.json")
    assert set(results.throughput) == {OURS.name, LIMIT.name}
    assert set(results.latencies["0"]) == {OURS.name, LIMIT.name}
    rounds = [*results.throughput.values(), *results.latencies["0"].values(), *results.processes.values()]
    assert all(rate(one) > 0 for one in rounds)
    assert "2" in results.processes or "`credhook worker` has no --processes" in done.stderr
    (measured,) = results.end_to_end
    assert measured.handled == measured.deliveries == 10
    assert 0 < measured.p50 <= measured.p99 < math.inf
    assert "credhook / bare httpx" in done.stdout
    assert "| credhook |" in (tmp_path / "work.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"work.json", "work.md"}


def test_bullmq_fetches_each_event_once(tmp_path: Path) -> None:
    if not (SCRATCH / "node" / ".installed").exists():
        pytest.skip("`make bench` installs its packages, if there is Node")
    with run(BULLMQ_CROWDED, replace(TERMS, limit=60.0, patience=60.0), tmp_path) as running:
        work = running.measure()
    assert work.whole
    assert work.events == TERMS.events


def test_a_worker_that_fetches_an_event_twice_is_found_out(tmp_path: Path) -> None:
    hasty = replace(LIMIT, arguments=("-c", FETCHES_TWICE))
    with (
        pytest.raises(RunFailed, match=r"bare httpx: 5 requests were made for 1 events"),
        run(hasty, replace(TERMS, events=5), tmp_path) as running,
    ):
        running.measure()


def test_a_slow_worker_is_measured_until_its_time_is_up(tmp_path: Path) -> None:
    terms = replace(TERMS, latency=0.1, events=1_000, seconds=1_000.0, limit=3.0)
    with run(replace(LIMIT, slots=1), terms, tmp_path) as running:
        work = running.measure()
    assert 1 <= work.events < 100
    assert not work.whole
