"""`python -m bench.ingest`: the receiver beside its peers, on one machine, in one run.

Every competitor gets the same signed deliveries, one process, one core, and a Redis of its own, configured alike.
"""

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from bench import machine, report
from bench.competitors import BARE, FASTIFY, FASTIFY_EVERYSEC, RECEIVERS, STANDARD, STRICT, Competitor, chosen
from bench.deliveries import SECRET, Deliveries, sign
from bench.machine import Meter, Process, RunFailed, say
from bench.report import Sheet, middle
from redis import Redis

from credhook.sandbox.local.environment import free_port, local_redis

#: Seconds without a new job after which the jobs are counted: requests are under way when wrk stops.
_QUIET: Final = 0.2

#: Seconds after which a server that has stopped answering is given up.
_SILENCE: Final = 10

_SIGNATURE: Final = re.compile(rb"webhook-signature: [^\r]+")

#: credhook, a peer that fsyncs alike, and the least ratio of their rates.
_RATIOS: Final = (
    (STRICT, FASTIFY, 1.25),
    (STANDARD, FASTIFY_EVERYSEC, 1.15),
    (STRICT, BARE, 0.7),
    (STRICT, STANDARD, 0.85),
)

#: Connections that are kept alive between the load and a server.
_CONNECTIONS: Final = 64

#: Most seconds of full load before a run, and signed requests for each second: more than any server takes.
_WARM_UP: Final = 2
_REQUESTS: Final = 50_000


@dataclass(slots=True)
class Run:
    """A competitor's server, and the deliveries that it has not seen yet."""

    competitor: Competitor
    server: Process
    port: int
    redis: Redis
    unseen: Deliveries

    def prove(self) -> None:
        """Raise RunFailed unless the server authenticates and deduplicates. The limit does neither."""
        if not self.competitor.verifies:
            return
        good, other = self._take(1).read(), self._take(1).read()
        forged = _SIGNATURE.sub(_SIGNATURE.findall(other)[0], good)
        statuses = [_status(self.port, request) for request in (forged, good, good)]
        if statuses != [401, 202, 202] or self._jobs() != 1:
            raise RunFailed(f"a forged, a first and a repeated delivery gave {statuses} and {self._jobs()} jobs")

    def throughput(self, seconds: int) -> dict[str, Any]:
        """Put as much load on the server as it takes, after connections, pools and compilers have settled."""
        if warm_up := min(_WARM_UP, seconds - 1):
            self._press(self._take(warm_up * _REQUESTS), warm_up)
        jobs, meter = self._jobs_at_rest(), Meter(self.server, self.redis)
        accepted, took = self._press(self.unseen, seconds)
        costs = meter.costs(accepted)
        made = self._jobs_at_rest() - jobs
        # Every acknowledged delivery is a job. Others may only come from requests under way.
        if self.competitor.jobs and not accepted <= made <= accepted + _CONNECTIONS:
            raise RunFailed(f"{accepted} deliveries were acknowledged, but {made} jobs are there")
        return {"rate": accepted / took, **costs}

    def _press(self, deliveries: Deliveries, seconds: int) -> tuple[int, float]:
        """Let wrk send as many deliveries as the server takes. Return how many were accepted, in how many seconds."""
        threads = min(4, len(machine.LOAD))
        part = map(str, (deliveries.path, deliveries.size, deliveries.first, deliveries.count, threads))
        command = f"wrk -t{threads} -c{_CONNECTIONS} -d{seconds}s --timeout {_SILENCE}s -s".split()
        command += [str(Path(__file__).with_name("requests.lua")), f"http://127.0.0.1:{self.port}/", "--", *part]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunFailed(f"wrk failed: {done.stderr.strip()[-500:]}")
        said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
        if said["exhausted"]:
            raise RunFailed(f"all {deliveries.count} deliveries were sent before the time was up")
        if said["refused"] or said["broken"]:
            raise RunFailed(f"{said['refused']} requests were refused and {said['broken']} connections broke")
        return said["answers"], said["microseconds"] / 1e6

    def _take(self, count: int) -> Deliveries:
        taken, self.unseen = self.unseen.split(count)
        return taken

    def _jobs(self) -> int:
        return int(self.redis.llen(self.competitor.jobs)) if self.competitor.jobs else 0

    def _jobs_at_rest(self) -> int:
        jobs, before = self._jobs(), -1
        while jobs != before:
            time.sleep(_QUIET)
            before, jobs = jobs, self._jobs()
        return jobs


@contextmanager
def run(competitor: Competitor, deliveries: Deliveries, folder: Path) -> Iterator[Run]:
    """Run a competitor's server in an empty folder, on a free port of loopback and on a Redis of its own."""
    port = free_port()
    environment = {
        "PORT": str(port),
        "UVICORN_PORT": str(port),
        "WEBHOOK_SECRET": SECRET,
        "CREDHOOK_WEBHOOK_SECRETS": SECRET,
        **competitor.settings,
    }
    try:
        with local_redis(folder, options=machine.NO_REWRITES) as url, Redis.from_url(url) as redis:
            redis.config_set("appendfsync", competitor.appendfsync)
            with Process(competitor.command(), {**environment, "REDIS_URL": url}, folder / "server.log") as server:
                server.await_answer(port)
                running = Run(competitor, server, port, redis, deliveries)
                running.prove()
                yield running
    except RunFailed as error:
        raise RunFailed(f"{competitor.title}: {error}") from error


def _status(port: int, request: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), 10) as connection, connection.makefile("rb") as answer:
        connection.sendall(request)
        return int(answer.readline().split()[1])


def measure(competitor: Competitor, seconds: int, folder: Path) -> dict[str, Any]:
    """Measure a run. Its Redis is empty, so that the same deliveries are new to all."""
    deliveries = sign(folder / "deliveries", (min(_WARM_UP, seconds - 1) + seconds) * _REQUESTS)
    with run(competitor, deliveries, folder) as running:
        return running.throughput(seconds)


def _sheets(results: dict[str, Any]) -> Iterator[Sheet]:
    title = "As much as each takes; processor time and memory of its process"
    yield report.ranking(title, "deliveries/s", results["titles"], results["throughput"], _ours_beside, "ingest")
    yield Sheet("Targets", report.TARGETS, list(_targets(results)))


def _ours_beside(name: str) -> str:
    """Return the name of the credhook that fsyncs as a competitor does."""
    return (STANDARD if RECEIVERS[name].appendfsync == "everysec" else STRICT).name


def _targets(results: dict[str, Any]) -> Iterator[list[str]]:
    titles, throughput = results["titles"], results["throughput"]
    for ours, peer, least in _RATIOS:
        if {ours.name, peer.name} <= throughput.keys():
            ratio = middle(throughput[ours.name], "rate") / middle(throughput[peer.name], "rate")
            yield report.target(f"{titles[ours.name]} / {titles[peer.name]}", ratio, least=least)
    peaks = [one["peak"] for each in (STRICT, STANDARD) for one in throughput.get(each.name, ())]
    yield report.target("most memory of the receiver, MiB", max(peaks, default=0), most=90)


@click.command()
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Medians are of these.")
@click.option("--seconds", default=10, show_default=True, type=click.IntRange(1), help="Of full load, each.")
@click.option("--competitors", default=",".join(RECEIVERS), show_default=True, help="Names, comma-separated.")
@click.option("--small", is_flag=True, help="Credhook and the limit, a second each: check that all this runs.")
@report.OUT
def main(*, rounds: int, seconds: int, competitors: str, small: bool, out: Path) -> None:
    """Measure the receiver beside its peers: tables, and ingest.json and ingest.md with the same."""
    if shutil.which("wrk") is None:
        raise click.ClickException("wrk is missing: install it (Debian: apt install wrk)")
    rounds, seconds = (1, 1) if small else (rounds, seconds)
    able = chosen([STRICT.name, BARE.name] if small else competitors.split(","), RECEIVERS)
    results: dict[str, Any] = {
        "setting": machine.here("uvicorn")
        | {
            "load": f"wrk, {_CONNECTIONS} connections, {seconds} s; median of {rounds} rounds",
            "redis": "an empty one for every run, appendfsync always (credhook standard and rows marked everysec: "
            "everysec), no rewrites meanwhile",
        },
        "titles": {each.name: each.title for each in able},
        "throughput": {},
    }
    with report.measuring("ingest", out, results) as folder:
        for number, competitor in report.taking_turns(rounds, able):
            found = report.measured(folder, partial(measure, competitor, seconds))
            results["throughput"].setdefault(competitor.name, []).append(found)
            say(f"{number}: {competitor.title}: {found['rate']:,.0f} deliveries a second")
    report.publish("ingest", out, results["setting"], _sheets(results))


if __name__ == "__main__":
    main()
