"""What Redis knows of one queue, asked at each scrape: how many events stand where, how old the oldest is, who works.

Nothing is written, and nothing is looked through: whatever the ledger holds, a scrape asks as much. RQ's registries are
not asked, since counting them cleans them up, and two clean-ups at once enqueue a job twice.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from credhook.store import Keys
from credhook.store.announcements import ANNOUNCEMENT_SECONDS, announced
from credhook.store.lease import ExporterLease
from credhook.store.opened import oldest_open_async


class QueueFigures:
    """The figures of one queue."""

    def __init__(self, redis: Redis, queue: str, *, exporter: ExporterLease | None = None) -> None:
        """`exporter`: the lease of the figures; None to export them always."""
        self._redis = redis
        self._index = Keys(queue)
        self._exporter = exporter
        index = self._index
        #: State → the sorted sets that hold the events that stand there.
        self._sets: dict[str, tuple[str, ...]] = {
            "open": (index.open,),
            "leased": (index.leases,),
            "waiting": (index.scheduled,),
            "dead": (index.dead,),
            "unhandled": index.all_unhandled,
            "quarantined": (index.quarantined,),
            "unreadable": (index.unreadable,),
        }

    async def __call__(self) -> list[Metric]:
        """All figures; none where Redis does not answer, or where another exports them."""
        try:
            if self._exporter and not self._exporter.is_held_by(await self._redis.get(self._exporter.key)):
                return []
            pipeline = self._redis.pipeline()  # All at one moment: they are subtracted from each other.
            for keys in self._sets.values():
                for key in keys:
                    pipeline.zcard(key)
            pipeline.llen(self._index.jobs)
            pipeline.hgetall(self._index.handlers)
            pipeline.time()
            *counts, length, said, clock = await pipeline.execute(raise_on_error=False)
            oldest, memory = await self._oldest(clock), await self._memory()
        except (RedisError, OSError):
            return []
        numbers = iter(counts)
        events = {state: _sum([next(numbers) for _ in keys]) for state, keys in self._sets.items()}
        figures = (
            _events(events, length),
            GaugeMetricFamily(
                "credhook_queue_length", "Jobs in RQ's queue.", length if isinstance(length, int) else None
            ),
            GaugeMetricFamily(
                "credhook_oldest_open_event_age_seconds",
                "Seconds since the oldest event that is not settled was received; 0 if there is none.",
                oldest,
            ),
            _workers(said, clock),
            GaugeMetricFamily("credhook_redis_memory_used_bytes", "Memory that Redis uses.", memory.get("used_memory")),
            GaugeMetricFamily(
                "credhook_redis_memory_limit_bytes",
                "Memory that Redis may use; 0 without a limit.",
                memory.get("maxmemory"),
            ),
        )
        return [family for family in figures if family.samples]

    async def _oldest(self, clock: Any) -> float | None:
        """The age of the oldest open event, 0 if none is open; None if the ledger is not as we write it."""
        try:
            came = await oldest_open_async(self._redis, self._index)
        except ResponseError:
            return None
        if came is None or not isinstance(clock, tuple):
            return 0.0 if came is None else None
        age: float = clock[0] + clock[1] / 1_000_000 - came / 1_000
        return max(0.0, age)

    async def _memory(self) -> Mapping[str, Any]:
        """What Redis says of its memory; nothing where it may not be asked."""
        try:
            answer: Mapping[str, Any] = await self._redis.info("memory")
        except ResponseError:
            return {}
        return answer


def _sum(counts: list[Any]) -> int | None:
    """None if a key is of another type: somebody else has written it, and it has no figure."""
    return sum(counts) if all(isinstance(count, int) for count in counts) else None


def _events(counts: Mapping[str, int | None], queued: Any) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "credhook_events",
        "Events that the ledger holds and that are not done, by where they stand; no event stands in two places.",
        labels=["state"],
    )
    for state, count in _apart(counts, queued):
        family.add_metric([state], count)
    return family


def _apart(counts: Mapping[str, int | None], queued: Any) -> Iterator[tuple[str, int]]:
    """Each state with its number. An open event that is nowhere else waits behind another one of its resource."""
    all_open, leased, waiting = counts["open"], counts["leased"], counts["waiting"]
    if isinstance(queued, int) and all_open is not None and leased is not None and waiting is not None:
        yield "queued", queued
        yield "leased", leased
        yield "waiting", waiting
        yield "parked", max(0, all_open - queued - leased - waiting)
    for state in ("dead", "unhandled", "quarantined", "unreadable"):
        if (count := counts[state]) is not None:
            yield state, count


def _workers(announcements: Any, clock: Any) -> GaugeMetricFamily:
    family = GaugeMetricFamily("credhook_workers", "Worker processes that are alive, by version.", labels=["version"])
    oldest = (clock[0] - ANNOUNCEMENT_SECONDS) * 1_000
    alive = [one for one in announced(announcements) if one.renewed >= oldest]
    versions = Counter(str(json.loads(one.text)["version"]) for one in alive)
    for version, number in sorted(versions.items()) or [("unknown", 0)]:
        family.add_metric([version], number)
    return family
