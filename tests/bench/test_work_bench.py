"""The worker's benchmark itself, small: that it runs, and that it believes nobody."""

import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bench.environments import ROOT, SCRATCH
from bench.process import Process
from bench.run import RunFailed
from bench.work.api import answering
from bench.work.competitors import BULLMQ_CROWDED, LIMIT, OURS, RQ_SIMPLE
from bench.work.results import Results, rate
from bench.work.run import Terms, round_trips, run
from redis import Redis
from threaded_client import sync_api
from waiting import until

from credhook.worker.api.token import ClientCredentials

TERMS = Terms(latency=0.0, events=20, seconds=1.0, limit=10.0, patience=0.1)

FETCHES_TWICE = """
import os, time, urllib.request
for _ in "twice":
    urllib.request.urlopen(os.environ["API_URL"] + "/me-creds/api/credentials/iss_0").read()
time.sleep(60)
"""
FETCHES_ONCE = FETCHES_TWICE.replace('in "twice"', 'in ["once"]')


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


def test_a_worker_that_leaves_something_undone_is_found_out(tmp_path: Path) -> None:
    idle = replace(RQ_SIMPLE, arguments=LIMIT.arguments)
    with (
        pytest.raises(RunFailed, match="all events were fetched, but rq:queue:default is not empty"),
        run(idle, TERMS, tmp_path) as running,
    ):
        running.measure()


def test_a_worker_that_ends_is_found_out_with_its_last_words(tmp_path: Path) -> None:
    broken = replace(LIMIT, arguments=("-c", "raise SystemExit('no idea what to do')"))
    with pytest.raises(RunFailed, match="it ended: no idea what to do"), run(broken, TERMS, tmp_path) as running:
        running.measure()


def test_a_slow_worker_is_measured_until_its_time_is_up(tmp_path: Path) -> None:
    terms = replace(TERMS, latency=0.1, events=1_000, seconds=1_000.0, limit=3.0)
    with run(replace(LIMIT, slots=1), terms, tmp_path) as running:
        work = running.measure()
    assert 1 <= work.events < 100
    assert not work.whole


def test_a_worker_that_stands_still_is_not_credited_with_how_fast_it_began(tmp_path: Path) -> None:
    stuck = replace(LIMIT, arguments=("-c", FETCHES_ONCE))
    with run(stuck, replace(TERMS, events=1_000, limit=1.0), tmp_path) as running:
        work = running.measure()
    assert work.events == 1
    assert work.rate <= 1.0


def test_a_queue_holds_no_more_than_its_worker_can_do() -> None:
    terms = Terms(latency=0.05, events=15_000, seconds=10.0, limit=30.0)
    assert terms.queue(RQ_SIMPLE) == 200
    assert terms.queue(OURS) == 15_000
    assert replace(terms, latency=0.5).queue(OURS) == 2_000
    assert replace(terms, latency=0.5, processes=2).queue(OURS) == 4_000
    assert replace(terms, latency=0.0).queue(RQ_SIMPLE) == 15_000


def test_the_stub_is_an_api_that_our_client_understands_and_takes_its_time(tmp_path: Path) -> None:
    with answering(0.05, tmp_path) as api:
        credentials = ClientCredentials(f"{api.url}/token", "bench", "bench")
        with sync_api(api.url, credentials) as client:
            begun = time.monotonic()
            issuances = [client.issuances.get(issuance) for issuance in ("iss_1", "iss_2", "iss_1")]
            assert time.monotonic() - begun >= 0.15
        seen = api.seen()
    assert [issuance.id for issuance in issuances] == ["iss_1", "iss_2", "iss_1"]
    assert len(issuances[0].credentials) == 2
    assert (seen.requests, seen.resources, seen.answered) == (3, 2, 3)


def test_what_redis_counts_as_read_are_round_trips(redis_client: Redis) -> None:
    """Whatever a pipeline or a script does; `total_commands_processed` counts every command in them."""
    pipeline = redis_client.pipeline(transaction=False)
    for _ in range(100):
        pipeline.incr("counter")
    before = round_trips(redis_client)
    pipeline.execute()
    redis_client.eval("for i = 1, 100 do redis.call('INCR', 'counter') end", 0)
    redis_client.get("counter")
    assert round_trips(redis_client) - before == 4  # The last one is the question itself.


def test_a_process_costs_what_its_children_cost(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    shell = f'"{sys.executable}" -c "{burn}"; "{sys.executable}" -c "{burn}\ntime.sleep(60)" & wait'
    process = Process(("sh", "-c", shell), {}, tmp_path / "log", folder=tmp_path)
    try:
        if process.cpu_seconds() is not None:
            until(
                lambda: (process.cpu_seconds() or 0) >= 0.55, what="the cost of a child that ended and one that lives"
            )
            assert (process.peak_megabytes() or 0) > 5
    finally:
        process.stop()
