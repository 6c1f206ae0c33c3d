"""Figures read at each scrape: those of one queue from Redis, and those of one process. A scrape writes nothing."""

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from credhook.settings import valid_until
from credhook.store import Keys
from credhook.store.announcements import ANNOUNCEMENT_SECONDS, announced, version
from credhook.store.counts import EventCounts, read_counts, request_counts
from credhook.store.health import Check
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
    for name, number in sorted(versions.items()) or [("unknown", 0)]:
        family.add_metric([name], number)
    return family


class TargetFigures:
    """The figures of one target. Alerts use `min` over all targets."""

    def __init__(
        self, examine: Callable[[], Awaitable[Sequence[Check]]], *, part: str, certificate: Path | None = None
    ) -> None:
        """Read the certificate once. `part` is `receiver` or `worker`."""
        self._examine = examine
        self._part = part
        self._expires = valid_until(certificate).timestamp() if certificate else None

    async def __call__(self) -> list[Metric]:
        """Return all figures."""
        checks = {check.name: check for check in await self._examine()}
        redis = checks.pop("redis", None)
        ready = not any(check.failed for check in (*checks.values(), *([redis] if redis else [])))
        up = GaugeMetricFamily("credhook_up", "1 if /readyz says ready, else 0.", labels=["part"])
        up.add_metric([self._part], ready)
        build = GaugeMetricFamily("credhook_build_info", "1 for the version that runs.", labels=["part", "version"])
        build.add_metric([self._part, version()], 1)
        answers = redis is None or redis.passed
        reached = GaugeMetricFamily("credhook_redis_up", "1 if Redis answers, else 0.", answers)
        passed = GaugeMetricFamily(
            "credhook_redis_check",
            "1 if the check of Redis passes, else 0; see /readyz.",
            labels=["check", "severity"],
        )
        for check in checks.values():
            passed.add_metric([check.name, "warning" if check.warning else "critical"], check.passed)
        found: list[Metric] = [up, build, reached, *([passed] if checks else [])]
        if self._expires is not None:
            expires = GaugeMetricFamily(
                "credhook_certificate_expiry_timestamp_seconds",
                "When the certificate expires, in seconds since the epoch.",
                labels=["part"],
            )
            expires.add_metric([self._part], self._expires)
            found.append(expires)
        return found
