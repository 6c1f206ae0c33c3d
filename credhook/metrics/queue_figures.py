"""The figures of one queue, read from Redis at each scrape. A scrape writes nothing."""

import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from credhook.store import Keys
from credhook.store.announcements import ANNOUNCEMENT_SECONDS, announced
from credhook.store.counts import EventCounts, read_counts, request_counts
from credhook.store.lease import ExporterLease


class QueueFigures:
    """The figures of one queue."""

    def __init__(self, redis: Redis, queue: str, *, exporter: ExporterLease | None = None) -> None:
        """Read the figures of `queue`. `exporter`: their lease; None exports them always."""
        self._redis = redis
        self._keys = Keys(queue)
        self._exporter = exporter

    async def __call__(self) -> list[Metric]:
        """Return all figures; none if Redis fails or another target exports them."""
        try:
            if self._exporter and not self._exporter.is_held_by(await self._redis.get(self._exporter.key)):
                return []
            pipeline = self._redis.pipeline()  # A transaction: the counts are subtracted from each other.
            request_counts(pipeline, self._keys, now=time.time())
            pipeline.hgetall(self._keys.handlers)
            pipeline.time()
            *replies, announcements, (seconds, microseconds) = await pipeline.execute()
            memory = await self._memory()
        except (RedisError, OSError):
            return []
        now = seconds + microseconds / 1_000_000
        counts = read_counts(replies, self._keys, now=now)
        figures = (
            _events(counts),
            GaugeMetricFamily("credhook_queue_length", "Jobs in RQ's queue.", counts.queued),
            GaugeMetricFamily(
                "credhook_oldest_open_event_age_seconds",
                "Seconds since the oldest event that is not settled was received; 0 if there is none.",
                counts.oldest_age or 0.0,
            ),
            _workers(announcements, now),
            GaugeMetricFamily("credhook_redis_memory_used_bytes", "Memory that Redis uses.", memory.get("used_memory")),
            GaugeMetricFamily(
                "credhook_redis_memory_limit_bytes",
                "Memory that Redis may use; 0 without a limit.",
                memory.get("maxmemory"),
            ),
        )
        return [family for family in figures if family.samples]

    async def _memory(self) -> Mapping[str, Any]:
        """Return Redis's figures of its memory; none if the user may not ask."""
        try:
            answer: Mapping[str, Any] = await self._redis.info("memory")
        except ResponseError:
            return {}
        return answer


def _events(counts: EventCounts) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "credhook_events",
        "Events in the store that are not done, by state; no event is in two states.",
        labels=["state"],
    )
    by_state = {
        "queued": counts.queued,
        "leased": counts.in_flight,
        "waiting": counts.retrying,
        # Every other open event waits behind another event of its resource.
        "blocked": max(0, counts.open - counts.queued - counts.in_flight - counts.retrying),
        "dead": counts.dead,
        "unhandled": sum(counts.unhandled.values()),
        "quarantined": counts.quarantined,
        "unreadable": counts.unreadable,
    }
    for state, count in by_state.items():
        family.add_metric([state], count)
    return family


def _workers(announcements: Mapping[Any, Any], now: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily("credhook_workers", "Worker processes that are alive, by version.", labels=["version"])
    alive = [one for one in announced(announcements) if one.renewed >= (now - ANNOUNCEMENT_SECONDS) * 1_000]
    versions = Counter(str(json.loads(one.text)["version"]) for one in alive)
    for version, number in sorted(versions.items()) or [("unknown", 0)]:
        family.add_metric([version], number)
    return family
