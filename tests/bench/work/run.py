"""A run: one competitor's worker on a full queue in a Redis of its own, watched until it is done or out of time."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import cores
from bench.environments import HERE, ROOT
from bench.load import Spoilt
from bench.process import Process
from bench.run import NO_REWRITES, RunFailed, redis_seconds
from bench.work.api import Api, NotAnswering, Seen, answering
from bench.work.competitors import Competitor
from bench.work.results import Work
from redis import Redis

from credhook.sandbox.local.local_redis import local_redis

#: Seconds until a worker must have asked for the first event.
_START_TIMEOUT: Final = 60.0

#: Seconds for filling a queue.
_FILL_TIMEOUT: Final = 600.0

#: Seconds between two looks at what the API has seen.
_LOOK: Final = 0.05


@dataclass(frozen=True, slots=True)
class Terms:
    """What is asked of a competitor.

    Attributes:
        latency: seconds after which the API answers.
        events: that wait in the queue at most.
        seconds: that a worker whose slots are never empty would be busy, at most.
        limit: seconds after which a slow worker is stopped.
        patience: seconds until a worker that has fetched everything must have settled it.
        options: for the worker's command.
        processes: that work; each has the competitor's slots.
        cores: that they share.
    """

    latency: float
    events: int
    seconds: float
    limit: float
    patience: float = 15.0
    options: tuple[str, ...] = ()
    processes: int = 1
    cores: frozenset[int] = cores.SERVER

    def queue(self, competitor: Competitor) -> int:
        """How many events its queue is filled with: no more than it could handle if the API were all it waited for."""
        if not self.latency:
            return self.events
        return math.ceil(min(self.events, self.processes * competitor.slots * self.seconds / self.latency))


class Run:
    """A competitor that has begun."""

    def __init__(
        self,
        competitor: Competitor,
        terms: Terms,
        worker: Process,
        redis: Redis,
        api: Api,
        *,
        trips_before: int,
        memory_before: int,
    ) -> None:
        """`trips_before`: that Redis had counted when the worker was started; `memory_before`: its bytes when empty."""
        self._competitor = competitor
        self._terms = terms
        self._worker = worker
        self._redis = redis
        self._api = api
        self._trips_before = trips_before
        self._memory_before = memory_before

    def measure(self) -> Work:
        """Watch it work.

        Raises:
            Spoilt: it did not do what it was to do.
        """
        events = self._terms.queue(self._competitor)
        # Processor time is counted from the first request on: what starting takes is not an event's.
        begun, start = self._watch(lambda seen: seen.requests > 0, _START_TIMEOUT), time.monotonic()
        cpu_before, redis_before = self._worker.cpu_seconds(), redis_seconds(self._redis)
        seen = self._watch(lambda seen: seen.answered >= events, self._terms.limit)
        whole = seen.answered >= events
        if whole:
            self._await_settled()
            seen = self._api.seen()
        seconds = max(seen.seconds, time.monotonic() - start)
        cpu, redis_cpu = self._worker.cpu_seconds(), redis_seconds(self._redis)
        if not seen.answered:
            raise Spoilt(f"no event was fetched: {self._worker.last_words}")
        if seen.requests != seen.resources or (whole and seen.requests != events):
            raise Spoilt(f"{seen.requests} requests were made for {seen.resources} events")
        counted = max(1.0, float(seen.answered - begun.answered))
        return Work(
            seen.answered / seconds,
            seen.answered,
            whole,
            cpu=None if cpu is None or cpu_before is None else (cpu - cpu_before) / counted * 1e6,
            peak=self._worker.peak_megabytes(),
            trips=(round_trips(self._redis) - self._trips_before) / seen.answered,
            redis=(redis_cpu - redis_before) / counted * 1e6,
            kept=(memory(self._redis) - self._memory_before) / seen.answered if whole else None,
        )

    def _watch(self, enough: Callable[[Seen], bool], limit: float) -> Seen:
        """What the API has seen once it is enough, or the time is up."""
        deadline = time.monotonic() + limit
        while True:
            seen = self._api.seen()
            if enough(seen) or time.monotonic() > deadline:
                return seen
            if not self._worker.lives:
                raise Spoilt(f"it ended: {self._worker.last_words}")
            time.sleep(_LOOK)

    def _await_settled(self) -> None:
        """Return once nothing is left of all that it was given."""
        deadline = time.monotonic() + self._terms.patience
        while self._competitor.unfinished and self._redis.exists(*self._competitor.unfinished):
            if time.monotonic() > deadline:
                left = [name for name in self._competitor.unfinished if self._redis.exists(name)]
                raise Spoilt(f"all events were fetched, but {', '.join(left)} is not empty")
            time.sleep(_LOOK)


@contextmanager
def run(competitor: Competitor, terms: Terms, folder: Path) -> Iterator[Run]:
    """Fill a competitor's queue and start its worker, in an empty folder.

    Raises:
        RunFailed: see there.
    """
    try:
        with (
            local_redis(folder, options=NO_REWRITES) as url,
            Redis.from_url(url) as redis,
            answering(terms.latency, folder) as api,
        ):
            memory_before = memory(redis)
            told = told_to(competitor, url, api.url) | {"EVENTS": str(terms.queue(competitor))}
            redis.config_set("appendfsync", "everysec")  # What fills it need not wait for the disk.
            _fill(competitor, told, folder)
            redis.config_set("appendfsync", competitor.appendfsync)
            trips = round_trips(redis)
            with working(competitor, told, folder, options=terms.options, on=terms.cores) as worker:
                yield Run(competitor, terms, worker, redis, api, trips_before=trips, memory_before=memory_before)
    except (Spoilt, NotAnswering) as error:
        raise RunFailed(f"{competitor.title}: {error}") from error


def round_trips(redis: Redis) -> int:
    """Requests that Redis has read: a pipeline is one, and so is a script with all that it calls.

    Its `total_commands_processed` would count each command in either.
    """
    statistics: Any = redis.info("stats")
    return int(statistics["total_reads_processed"])


def memory(redis: Redis) -> int:
    """Bytes that Redis has in use, but for what lies in the buffers of its clients and of its append-only file."""
    used: Any = redis.info("memory")
    return int(used["used_memory"] - used["mem_clients_normal"] - used["mem_aof_buffer"])


def _fill(competitor: Competitor, told: dict[str, str], folder: Path) -> None:
    command = competitor.fills()
    if command is None:
        return
    filling = Process(command, told, folder / "fill.log", folder=ROOT, on=cores.ALL)
    try:
        if filling.wait(_FILL_TIMEOUT):
            raise Spoilt(f"its queue could not be filled: {filling.last_words}")
    finally:
        filling.stop()


@contextmanager
def working(
    competitor: Competitor,
    told: dict[str, str],
    folder: Path,
    *,
    options: tuple[str, ...] = (),
    on: frozenset[int] = cores.SERVER,
) -> Iterator[Process]:
    """Run a competitor's worker, its log in `folder`."""
    worker = Process(competitor.works(*options), told, folder / "worker.log", folder=ROOT, on=on)
    try:
        yield worker
    finally:
        worker.stop()


def told_to(competitor: Competitor, redis_url: str, api_url: str) -> dict[str, str]:
    """A competitor's environment."""
    return {
        "PYTHONPATH": str(HERE.parent),
        "REDIS_URL": redis_url,
        "RQ_REDIS_URL": redis_url,
        "API_URL": api_url,
        "SLOTS": str(competitor.slots),
        "CREDHOOK_API_URL": api_url,
        "CREDHOOK_TOKEN_URL": f"{api_url}/token",
        "CREDHOOK_CLIENT_ID": "bench",
        "CREDHOOK_CLIENT_SECRET": "bench",
        "CREDHOOK_CONCURRENCY": str(competitor.slots),
    } | competitor.settings
