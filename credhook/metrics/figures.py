"""Figures read at each scrape: those of one queue from Redis, and those of one process.

A scrape writes nothing, and costs the same however many events there are. Every target exports the queue's figures.
"""

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from credhook.ops.verdict import Outside, Verdict
from credhook.settings import valid_until
from credhook.store import Keys
from credhook.store.announcements import ANNOUNCEMENT_SECONDS, SILENT_SECONDS, Announced, announced, version
from credhook.store.arrivals import Arrivals
from credhook.store.counts import read_counts, request_counts
from credhook.store.errors import STORE_ERRORS, StoreRefusal
from credhook.store.health import Check
from credhook.store.store import AsyncStore
from credhook.store.traffic import minute_of


def gauge(name: str, meaning: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    """Return a gauge with a value for each combination of its labels' values."""
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for combination, value in values.items():
        family.add_metric(combination, value)
    return family


#: Verdict of a check from outside → its value. A check that was not made has none.
_LEVELS: Mapping[Verdict, float] = {Verdict.OK: 1, Verdict.WARN: 0.5, Verdict.FAIL: 0}


def _by_version(processes: Sequence[Announced]) -> Mapping[tuple[str, ...], float]:
    return Counter((str(json.loads(process.text)["version"]),) for process in processes) or {("unknown",): 0}


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """The figures of one queue."""

    store: AsyncStore

    async def __call__(self) -> list[Metric]:
        """Return all figures; none if Redis fails."""
        redis, keys = self.store.redis, self.store.keys
        info: dict[str, Any] = {}
        forsaken: dict[tuple[str, ...], float] = {}
        try:
            pipeline = redis.pipeline()  # In a transaction, since the counts are subtracted from each other.
            request_counts(pipeline, keys, now=time.time())
            pipeline.hgetall(keys.announcements)
            pipeline.hgetall(keys.receivers)
            pipeline.get(keys.outside)
            pipeline.time()
            *replies, announcements, receivers, outside, (seconds, microseconds) = await pipeline.execute()
            now = seconds + microseconds / 1_000_000
            deliveries: Any = await self.store.run("deliveries", [])
            with suppress(StoreRefusal):  # The user may not run INFO.
                info = await redis.info()
            with suppress(StoreRefusal):  # The user may not read other queues.
                forsaken = await self._forsaken(now)
        except STORE_ERRORS:
            return []
        counts = read_counts(replies, now=now)
        by_state: dict[tuple[str, ...], float] = {
            ("queued",): counts.queued,
            ("leased",): counts.in_flight,
            ("waiting",): counts.retrying,
            ("postponed",): counts.postponed,
            # Every other open event waits behind another event of its resource.
            ("blocked",): max(0, counts.open - counts.queued - counts.in_flight - counts.retrying - counts.postponed),
            ("dead",): counts.dead,
            ("unhandled",): sum(counts.unhandled.values()),
            ("quarantined",): counts.quarantined,
            ("unreadable",): counts.unreadable,
        }
        alive = [worker for worker in announced(announcements) if worker.is_alive(now * 1_000)]
        lately = (now - ANNOUNCEMENT_SECONDS) * 1_000
        receiving = [receiver for receiver in announced(receivers) if receiver.renewed >= lately]
        arrivals, minute = Arrivals.read(deliveries), minute_of(int(now * 1_000))
        checks = Outside.model_validate_json(outside).findings if outside else ()
        figures = (
            gauge(
                "credhook_events",
                "Events in the store that are not done, by state; no event is in two states.",
                ["state"],
                by_state,
            ),
            GaugeMetricFamily("credhook_queue_length", "Events that wait in RQ's queue.", counts.queued),
            GaugeMetricFamily(
                "credhook_oldest_open_event_age_seconds",
                "Seconds since the oldest event that is not settled was received, or since it is due if a handler has "
                "postponed it; 0 if there is none.",
                counts.oldest_age or 0.0,
            ),
            GaugeMetricFamily(
                "credhook_vanished_events",
                "Acknowledged events whose records Redis has lost within three days.",
                counts.vanished,
            ),
            gauge("credhook_workers", "Worker processes that are alive, by version.", ["version"], _by_version(alive)),
            gauge(
                "credhook_receivers",
                "Receiver processes that are alive, by version.",
                ["version"],
                _by_version(receiving),
            ),
            GaugeMetricFamily(
                "credhook_receivers_refusing",
                "Receiver processes that refuse every delivery while their neighbours accept.",
                sum(bool(json.loads(receiver.text).get("refuses_alone")) for receiver in receiving),
            ),
            GaugeMetricFamily(
                "credhook_last_delivery_age_seconds",
                "Seconds since the minute of the last delivery; absent if none came within two weeks.",
                None if arrivals.last is None else 60.0 * max(0, minute - arrivals.last),
            ),
            GaugeMetricFamily(
                "credhook_deliveries_missing",
                "1 if no deliveries come although they came at this time a week ago, else 0.",
                arrivals.silence(minute) is not None,
            ),
            gauge(
                "credhook_outside_check",
                "Last check of public URL and endpoint: 1 if it passed, 0.5 for a warning, 0 if it failed.",
                ["check"],
                {(check.name,): _LEVELS[check.verdict] for check in checks if check.verdict in _LEVELS},
            ),
            gauge(
                "credhook_forsaken_events",
                "Open events of each queue on this Redis that no live worker takes from; absent if there are none.",
                ["queue"],
                forsaken,
            ),
            GaugeMetricFamily("credhook_redis_memory_used_bytes", "Memory that Redis uses.", info.get("used_memory")),
            GaugeMetricFamily(
                "credhook_redis_memory_limit_bytes",
                "Memory that Redis may use; 0 without a limit.",
                info.get("maxmemory"),
            ),
            GaugeMetricFamily(
                "credhook_redis_aof_bytes", "Size of Redis's append-only file.", info.get("aof_current_size")
            ),
        )
        return [family for family in figures if family.samples]

    async def _forsaken(self, now: float) -> dict[tuple[str, ...], float]:
        """Return the number of open events of each queue without a live worker, such as a misspelt one."""
        listed: Any = await self.store.redis.smembers("rq:queues")
        queues = sorted(key.decode().removeprefix("rq:queue:") for key in listed)
        pipeline = self.store.redis.pipeline(transaction=False)
        for keys in map(Keys, queues):
            pipeline.zcard(keys.open)
            pipeline.zrevrange(keys.heartbeats, 0, 0, withscores=True)
        replies = await pipeline.execute()
        alive = (now - SILENT_SECONDS) * 1_000
        return {
            (queue,): events
            for queue, events, last in zip(queues, replies[::2], replies[1::2], strict=True)
            if events and not (last and last[0][1] >= alive)
        }


class TargetFigures:
    """The figures of one target. Alerts use `min` over all targets."""

    def __init__(
        self, examine: Callable[[], Awaitable[Sequence[Check]]], *, part: str, certificate: Path | None = None
    ) -> None:
        """`part` is `receiver` or `worker`."""
        self._examine, self._part, self._certificate = examine, part, certificate
        self._expires = valid_until(certificate).timestamp() if certificate else None

    async def __call__(self) -> list[Metric]:
        """Return all figures."""
        checks = await self._examine()
        ready = not any(check.failed for check in checks)
        reached = all(check.passed for check in checks if check.name == "redis")
        families: list[Metric] = [
            gauge("credhook_up", "1 if /readyz says ready, else 0.", ["part"], {(self._part,): ready}),
            gauge(
                "credhook_build_info", "1 for the version that runs.", ["part", "version"], {(self._part, version()): 1}
            ),
            GaugeMetricFamily("credhook_redis_up", "1 if Redis answers, else 0.", reached),
        ]
        passed: dict[tuple[str, ...], float] = {
            (check.name, "warning" if check.warning else "critical"): check.passed
            for check in checks
            if check.name not in {"redis", "workers", "deliveries"}  # These do not check the settings of Redis.
        }
        if passed:
            meaning = "1 if the check of Redis passes, else 0; see /readyz."
            families.append(gauge("credhook_redis_check", meaning, ["check", "severity"], passed))
        # A receiver loads a renewed certificate by itself. A worker shows its own until it is restarted.
        if self._certificate and self._part == "receiver":
            with suppress(OSError, ValueError):  # While the file is written, the old certificate is in use.
                self._expires = valid_until(self._certificate).timestamp()
        if self._expires is not None:
            name = "credhook_certificate_expiry_timestamp_seconds"
            meaning = "When the certificate expires, in seconds since the epoch."
            families.append(gauge(name, meaning, ["part"], {(self._part,): self._expires}))
        return families
