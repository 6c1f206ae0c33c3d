"""A run: one competitor's server on a Redis of its own, proven to do its work, then put under load."""

import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench import generator, load
from bench.competitors import Competitor
from bench.deliveries import Deliveries
from bench.generator import Broken
from bench.load import Spoilt
from bench.results import Latency, Throughput
from bench.server import NotServing, Server, serving
from redis import Redis

from credhook.sandbox.local.local_redis import local_redis

#: Seconds without a new job after which the jobs are counted: requests are under way when wrk stops.
_QUIET: Final = 0.2

#: By default Redis rewrites its append-only file when it has doubled; here never, so that no run meets it by chance.
NO_REWRITES: Final = ("--auto-aof-rewrite-percentage", "0")

_SIGNATURE: Final = re.compile(rb"webhook-signature: [^\r]+")


class RunFailed(Exception):
    """A run gave no figures that mean anything; the message says whose, and why."""


class Run:
    """A competitor's server that runs, and the deliveries that it has not seen yet."""

    def __init__(
        self, competitor: Competitor, server: Server, redis: Redis, deliveries: Deliveries, connections: int
    ) -> None:
        self._competitor = competitor
        self._server = server
        self._redis = redis
        self._unseen = deliveries
        self._connections = connections

    def prove(self) -> None:
        """See that the server authenticates and deduplicates, if it is one that does anything.

        Raises:
            Spoilt: it does not.
        """
        if not self._competitor.verifies:
            return
        good, other = self._take(1).read(), self._take(1).read()
        forged = _SIGNATURE.sub(_SIGNATURE.findall(other)[0], good)
        statuses = [_status(self._server.port, request) for request in (forged, good, good)]
        if statuses != [401, 202, 202] or self._jobs() != 1:
            raise Spoilt(f"a forged, a first and a repeated delivery gave {statuses} and {self._jobs()} jobs")

    def warm_up(self, seconds: int, count: int) -> None:
        """Let connections, pools and compilers settle."""
        if seconds:
            load.press(self._server.port, self._take(count), seconds=seconds, connections=self._connections)

    def throughput(self, seconds: int) -> Throughput:
        """Put as much load on the server as it takes.

        Raises:
            Spoilt: the load failed, or jobs are missing.
        """
        before, cpu_before = self._jobs_at_rest(), self._server.cpu_seconds()
        redis_before, written_before = redis_seconds(self._redis), written(self._redis)
        answers = load.press(self._server.port, self._unseen, seconds=seconds, connections=self._connections)
        cpu, redis_cpu, written_after = self._server.cpu_seconds(), redis_seconds(self._redis), written(self._redis)
        self._check_jobs(before, answers.accepted, under_way=self._connections)
        return Throughput(
            answers.accepted / answers.seconds,
            cpu=None if cpu is None or cpu_before is None else (cpu - cpu_before) / answers.accepted * 1e6,
            peak=self._server.peak_megabytes(),
            redis=(redis_cpu - redis_before) / answers.accepted * 1e6,
            written=(written_after - written_before) / answers.accepted,
        )

    def latency(self, rate: float, seconds: float) -> Latency:
        """Measure how long answers take at a steady rate.

        Raises:
            Spoilt: a delivery was refused, or jobs are missing.
        """
        deliveries, before = self._take(generator.at_rate(rate, seconds)), self._jobs_at_rest()
        sent = generator.drive(self._server.port, deliveries, rate=rate, seconds=seconds, connections=self._connections)
        if sent.refused:
            raise Spoilt(f"{sent.refused} requests were refused")
        self._check_jobs(before, len(sent.latencies), under_way=0)
        return Latency(
            rate,
            p50=percentile(sent.latencies, 0.5),
            p99=percentile(sent.latencies, 0.99),
            late=percentile(sent.lateness, 0.99),
            peak=self._server.peak_megabytes(),
        )

    def _take(self, count: int) -> Deliveries:
        """Deliveries that have not been sent before."""
        if count > self._unseen.count:
            raise Spoilt(f"{count} more deliveries are needed than were signed: raise --requests")
        taken, self._unseen = self._unseen.split(count)
        return taken

    def _jobs(self) -> int:
        return int(self._redis.llen(self._competitor.jobs)) if self._competitor.jobs else 0

    def _jobs_at_rest(self) -> int:
        jobs = self._jobs()
        while self._competitor.jobs:
            time.sleep(_QUIET)
            before, jobs = jobs, self._jobs()
            if jobs == before:
                break
        return jobs

    def _check_jobs(self, before: int, accepted: int, *, under_way: int) -> None:
        """See that every acknowledged delivery is a job, and nothing else but what was under way at the end."""
        made = self._jobs_at_rest() - before
        if self._competitor.jobs and not accepted <= made <= accepted + under_way:
            raise Spoilt(f"{accepted} deliveries were acknowledged, but {made} jobs are there")


@contextmanager
def run(
    competitor: Competitor,
    deliveries: Deliveries,
    folder: Path,
    *,
    connections: int,
) -> Iterator[Run]:
    """Run a competitor's server in an empty folder, on a Redis of its own.

    Raises:
        RunFailed: see there.
    """
    try:
        with local_redis(folder, options=NO_REWRITES) as url, Redis.from_url(url) as redis:
            redis.config_set("appendfsync", competitor.appendfsync)
            with serving(competitor, url, folder) as server:
                running = Run(competitor, server, redis, deliveries, connections)
                running.prove()
                yield running
    except (Spoilt, Broken, NotServing) as error:
        raise RunFailed(f"{competitor.title}: {error}") from error


def redis_seconds(redis: Redis) -> float:
    """Processor time that Redis has used, in all its threads."""
    used: Any = redis.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def written(redis: Redis) -> int:
    """Bytes in Redis's append-only file."""
    persistence: Any = redis.info("persistence")
    return int(persistence["aof_current_size"])


def _status(port: int, request: bytes) -> int:
    """The status that one request is answered with."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection, connection.makefile("rb") as answer:
        connection.sendall(request)
        return int(answer.readline().split()[1])


def percentile(seconds: Sequence[float], part: float) -> float:
    """The latency that this part of them does not exceed, in milliseconds, by nearest rank."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1_000
