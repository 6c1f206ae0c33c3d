"""`python -m bench.ingest`: the receiver beside its peers, on one machine, in one run.

Every competitor gets the same signed deliveries, one process, one core, and a Redis of its own, configured alike.
"""

import json
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from bench import generator, machine, report
from bench.competitors import BARE, FASTIFY, FASTIFY_EVERYSEC, GROUPED, RECEIVERS, STANDARD, STRICT, Competitor, chosen
from bench.deliveries import SECRET, Deliveries, sign
from bench.environments import say
from bench.machine import Meter, Process, RunFailed
from bench.report import Rounds, Sheet, middle
from redis import Redis

from credhook.sandbox.local.environment import free_port, local_redis

T = TypeVar("T")

#: Parts of its own maximum at which each competitor's latencies are measured.
LOADS: Final = (0.25, 0.5, 0.75)

#: The load at which the limits are measured beside credhook, as a part of credhook's maximum.
_HALF: Final = 0.5

#: Seconds that a run takes in addition to its load.
_AROUND: Final = 60

#: Seconds without a new job after which the jobs are counted: requests are under way when wrk stops.
_QUIET: Final = 0.2

_SIGNATURE: Final = re.compile(rb"webhook-signature: [^\r]+")

#: credhook, a peer that fsyncs alike, and the least ratio of their rates.
_RATIOS: Final = (
    (STRICT, FASTIFY, 1.25),
    (STANDARD, FASTIFY_EVERYSEC, 1.15),
    (STRICT, BARE, 0.7),
    (STRICT, STANDARD, 0.85),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run.

    Attributes:
        rounds: competitors take turns, and a figure is the median of its rounds.
        seconds: of full load in a run.
        latency_seconds: at each of the steady rates.
        warm_up_seconds: of full load before a run.
        connections: kept alive between the load and a server.
        requests: signed for a run; each is sent once.
    """

    rounds: int = 3
    seconds: int = 10
    latency_seconds: float = 5.0
    warm_up_seconds: int = 2
    connections: int = 64
    requests: int = 800_000


_PLAN: Final = Plan()

#: Enough to see that everything works, too little for figures.
_SMALL: Final = Plan(rounds=1, seconds=1, latency_seconds=0.3, warm_up_seconds=0, connections=16, requests=100_000)


class Run:
    """A competitor's server, and the deliveries that it has not seen yet."""

    def __init__(
        self, competitor: Competitor, server: Process, port: int, redis: Redis, unseen: Deliveries, connections: int
    ) -> None:
        self._competitor, self._server, self._port = competitor, server, port
        self._redis, self._unseen, self._connections = redis, unseen, connections

    def prove(self) -> None:
        """Raise RunFailed unless the server authenticates and deduplicates. The limits do neither."""
        if not self._competitor.verifies:
            return
        good, other = self._take(1).read(), self._take(1).read()
        forged = _SIGNATURE.sub(_SIGNATURE.findall(other)[0], good)
        statuses = [_status(self._port, request) for request in (forged, good, good)]
        if statuses != [401, 202, 202] or self._jobs() != 1:
            raise RunFailed(f"a forged, a first and a repeated delivery gave {statuses} and {self._jobs()} jobs")

    def warm_up(self, seconds: int, count: int) -> None:
        """Let connections, pools and compilers settle."""
        if seconds:
            self._press(self._take(count), seconds)

    def throughput(self, seconds: int) -> dict[str, Any]:
        """Put as much load on the server as it takes."""
        before, meter, written_before = self._jobs_at_rest(), Meter(self._server, self._redis), written(self._redis)
        accepted, took = self._press(self._unseen, seconds)
        costs, written_after = meter.costs(accepted), written(self._redis)
        self._check_jobs(before, accepted, under_way=self._connections)
        return {"rate": accepted / took, **costs, "written": (written_after - written_before) / accepted}

    def latency(self, rate: float, seconds: float) -> dict[str, Any]:
        """Measure how long answers take at a steady rate."""
        deliveries, before = self._take(max(1, round(rate * seconds))), self._jobs_at_rest()
        sent = generator.drive(self._port, deliveries, rate, self._connections)
        self._check_jobs(before, deliveries.count, under_way=0)
        return {"rate": rate, **sent.figures(sent.latencies), "peak": self._server.peak_megabytes()}

    def _press(self, deliveries: Deliveries, seconds: int) -> tuple[int, float]:
        """Let wrk send as many deliveries as the server takes. Return how many were accepted, in how many seconds."""
        threads = min(4, self._connections, len(machine.LOAD))
        part = map(str, (deliveries.path, deliveries.size, deliveries.first, deliveries.count, threads))
        command = f"wrk -t{threads} -c{self._connections} -d{seconds}s --timeout {generator.SILENCE:g}s -s".split()
        command += [str(Path(__file__).with_name("requests.lua")), f"http://127.0.0.1:{self._port}/", "--", *part]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunFailed(f"wrk failed: {done.stderr.strip()[-500:]}")
        said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
        if said["exhausted"]:
            raise RunFailed(f"all {deliveries.count} deliveries were sent before the time was up: raise --requests")
        if said["refused"] or said["broken"]:
            raise RunFailed(f"{said['refused']} requests were refused and {said['broken']} connections broke")
        return said["answers"], said["microseconds"] / 1e6

    def _take(self, count: int) -> Deliveries:
        if count > self._unseen.count:
            raise RunFailed(f"{count} more deliveries are needed than were signed: raise --requests")
        taken, self._unseen = self._unseen.split(count)
        return taken

    def _jobs(self) -> int:
        return int(self._redis.llen(self._competitor.jobs)) if self._competitor.jobs else 0

    def _jobs_at_rest(self) -> int:
        jobs, before = self._jobs(), -1
        while self._competitor.jobs and jobs != before:
            time.sleep(_QUIET)
            before, jobs = jobs, self._jobs()
        return jobs

    def _check_jobs(self, before: int, accepted: int, *, under_way: int) -> None:
        """Raise RunFailed unless every acknowledged delivery is a job. Others may only come from requests under way."""
        made = self._jobs_at_rest() - before
        if self._competitor.jobs and not accepted <= made <= accepted + under_way:
            raise RunFailed(f"{accepted} deliveries were acknowledged, but {made} jobs are there")


@contextmanager
def run(competitor: Competitor, deliveries: Deliveries, folder: Path, *, connections: int) -> Iterator[Run]:
    """Run a competitor's server in an empty folder, on a Redis of its own."""
    try:
        with local_redis(folder, options=machine.NO_REWRITES) as url, Redis.from_url(url) as redis:
            redis.config_set("appendfsync", competitor.appendfsync)
            with serving(competitor, url, folder) as (server, port):
                running = Run(competitor, server, port, redis, deliveries, connections)
                running.prove()
                yield running
    except RunFailed as error:
        raise RunFailed(f"{competitor.title}: {error}") from error


@contextmanager
def serving(competitor: Competitor, redis_url: str, folder: Path) -> Iterator[tuple[Process, int]]:
    """Run a competitor's server on a free port of loopback."""
    port = free_port()
    environment = {
        "PORT": str(port),
        "REDIS_URL": redis_url,
        "UVICORN_PORT": str(port),
        "WEBHOOK_SECRET": SECRET,
        "CREDHOOK_WEBHOOK_SECRETS": SECRET,
    }
    server = Process(competitor.command(), {**environment, **competitor.settings}, folder / "server.log")
    try:
        server.await_answer(port)
        yield server, port
    finally:
        server.stop()


def written(redis: Redis) -> int:
    """Return the bytes in Redis's append-only file."""
    persistence: Any = redis.info("persistence")
    return int(persistence["aof_current_size"])


def _status(port: int, request: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), 10) as connection, connection.makefile("rb") as answer:
        connection.sendall(request)
        return int(answer.readline().split()[1])


class _Runs:
    """The runs of a plan. Each has an empty Redis, so the same deliveries are new to all."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        self._signed: Deliveries | None = None

    def run(self, competitor: Competitor, measure: Callable[[Run], T]) -> T:
        """Measure a run that has been warmed up."""
        plan, deliveries = self._plan, self._deliveries()

        def once(folder: Path) -> T:
            with run(competitor, deliveries, folder, connections=plan.connections) as running:
                running.warm_up(plan.warm_up_seconds, plan.requests // 8)
                return measure(running)

        return report.measured(self._folder, once)

    def latencies(self, competitor: Competitor, rates: Sequence[float]) -> list[dict[str, Any]]:
        seconds = self._plan.latency_seconds
        return self.run(competitor, lambda running: [running.latency(rate, seconds) for rate in rates])

    def _deliveries(self) -> Deliveries:
        """Sign the deliveries again when their signatures would become too old within the run."""
        plan = self._plan
        seconds = plan.warm_up_seconds + max(plan.seconds, 2 * len(LOADS) * plan.latency_seconds) + _AROUND
        if self._signed is None or not self._signed.fresh_for(seconds):
            self._signed = sign(self._folder / "deliveries", plan.requests)
        return self._signed


def _measure(plan: Plan, able: Sequence[Competitor], runs: _Runs, results: dict[str, Any], *, latency: bool) -> None:
    throughput = results["throughput"]
    for number, competitor in report.taking_turns(plan.rounds, able):
        found = runs.run(competitor, lambda running: running.throughput(plan.seconds))
        throughput.setdefault(competitor.name, []).append(found)
        say(f"{number}: {competitor.title}: {found['rate']:,.0f} deliveries a second")
    for number, competitor in report.taking_turns(plan.rounds if latency else 0, able):
        most = middle(throughput[competitor.name], "rate")
        loads = results["latency"].setdefault(competitor.name, {})
        for load, one in zip(LOADS, runs.latencies(competitor, [most * load for load in LOADS]), strict=True):
            loads.setdefault(str(load), []).append(one)
            say(f"{number}: {competitor.title} at {load:.0%}: p50 {one['p50']:.1f} ms, p99 {one['p99']:.1f} ms")
        if competitor.name in {BARE.name, GROUPED.name} and STRICT.name in throughput:
            half = middle(throughput[STRICT.name], "rate") * _HALF
            results["same_rate"].setdefault(competitor.name, []).extend(runs.latencies(competitor, [half]))


def _sheets(results: dict[str, Any]) -> list[Sheet]:
    titles, throughput = results["titles"], results["throughput"]
    rows = []
    for name, rounds in sorted(throughput.items(), key=lambda item: -middle(item[1], "rate")):
        # Compare each with the credhook that fsyncs as it does.
        alike = (STANDARD if RECEIVERS[name].appendfsync == "everysec" else STRICT).name
        ratio = f"{middle(throughput[alike], 'rate') / middle(rounds, 'rate'):.2f}" if alike in throughput else ""
        redis, kept = middle(rounds, "redis"), middle(rounds, "written")
        on_redis = (f"{redis:.0f}", f"{kept:.0f}") if kept else ("", "")
        cells = (*report.spread(rounds), ratio, f"{middle(rounds, 'cpu'):.0f}", *on_redis)
        rows.append([titles[name], *cells, f"{_peak(results, name):.0f}"])
    costs = ("µs each", "Redis, µs each", "written, bytes each", "MiB")
    late = [
        _latency(f"{titles[name]}, {float(load):.0%}", rounds)
        for name, loads in results["latency"].items()
        for load, rounds in loads.items()
    ]
    late += [
        _latency(f"{titles[name]}, at half of credhook's maximum", rounds)
        for name, rounds in results["same_rate"].items()
    ]
    return [
        Sheet(
            "As much as each takes; processor time and memory of its process",
            ["competitor", "deliveries/s", "rounds", "credhook / it", *costs],
            rows,
        ),
        Sheet(
            "Latency at steady rates, counted from when a request was due",
            ["competitor, part of its maximum", "deliveries/s", "p50, ms", "p99, ms", "generator late, ms"],
            late,
        ),
        report.targets(_targets(results)),
    ]


def _latency(title: str, rounds: Rounds) -> list[str]:
    figures = (f"{middle(rounds, figure):.2f}" for figure in ("p50", "p99", "late"))
    return [title, f"{middle(rounds, 'rate'):,.0f}", *figures]


def _peak(results: dict[str, Any], name: str) -> float:
    rounds = [results["throughput"][name], *results["latency"].get(name, {}).values()]
    return max(float(one["peak"]) for each in rounds for one in each)


def _targets(results: dict[str, Any]) -> Iterator[list[str]]:
    titles, throughput = results["titles"], results["throughput"]
    for ours, peer, least in _RATIOS:
        if {ours.name, peer.name} <= throughput.keys():
            ratio = middle(throughput[ours.name], "rate") / middle(throughput[peer.name], "rate")
            yield report.at_least(f"{titles[ours.name]} / {titles[peer.name]}", ratio, least)
    if GROUPED.name in results["same_rate"]:
        ratio = middle(results["latency"][STRICT.name][str(_HALF)], "p99")
        ratio /= middle(results["same_rate"][GROUPED.name], "p99")
        yield report.at_most(f"p99 at half load / that of {GROUPED.title} at the same rate", ratio, 1.5)
    peaks = [_peak(results, each.name) for each in (STRICT, STANDARD) if each.name in throughput]
    if peaks:
        yield report.at_most("most memory of the receiver, MiB", max(peaks), 90, ".0f")


@click.command()
@click.option("--rounds", default=_PLAN.rounds, show_default=True, type=click.IntRange(1), help="Medians are of these.")
@click.option("--seconds", default=_PLAN.seconds, show_default=True, type=click.IntRange(1), help="Of full load, each.")
@click.option("--connections", default=_PLAN.connections, show_default=True, type=click.IntRange(1, 900))
@click.option(
    "--requests", default=_PLAN.requests, show_default=True, type=click.IntRange(10_000), help="For each run."
)
@click.option("--competitors", default=",".join(RECEIVERS), show_default=True, help="Names, comma-separated.")
@click.option("--latency/--no-latency", default=True, show_default=True, help="Latencies at steady rates.")
@click.option("--small", is_flag=True, help="Credhook and the limits, a second each: whether all this runs.")
@report.OUT
def main(*, competitors: str, latency: bool, small: bool, out: Path, **amounts: Any) -> None:
    """Measure the receiver beside its peers: tables, and ingest.json and ingest.md with the same."""
    plan = _SMALL if small else replace(_PLAN, **amounts)
    names = [STRICT.name, BARE.name, GROUPED.name] if small else competitors.split(",")
    able = chosen(names, RECEIVERS)
    results: dict[str, Any] = {
        "setting": machine.here(["uvicorn"])
        | {
            "load": f"wrk, {plan.connections} connections, {plan.seconds} s; median of {plan.rounds} rounds",
            "redis": "an empty one for every run, appendfsync always (credhook standard and rows marked everysec: "
            "everysec), no rewrites meanwhile",
        },
        "titles": {each.name: each.title for each in able},
        **{part: {} for part in ("throughput", "latency", "same_rate")},
    }
    with report.measuring("ingest", out, results) as folder:
        _measure(plan, able, _Runs(plan, folder), results, latency=latency)
    report.publish("ingest", out, results["setting"], _sheets(results))


if __name__ == "__main__":
    main()
