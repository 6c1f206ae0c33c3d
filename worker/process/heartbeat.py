"""The heartbeat of a worker process, about once a second, from a thread.

It shows the worker to RQ's tools, announces the process, and keeps it from counting as dead. If a process stops
beating, its host is down or cannot reach Redis. Another worker then takes over its events. The event loop does not
beat: a handler that blocks it must not look like a dead host. The supervisor ends such a process.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from credhook.settings import WorkerSettings
from credhook.store import announcements
from credhook.store.errors import STORE_ERRORS, hint, is_denied
from credhook.store.store import SyncStore
from credhook.worker.handlers.registry import Registry
from credhook.worker.platform.limits import platform_key
from credhook.worker.process.concurrent import ConcurrentWorker
from credhook.worker.queue.clock import ClockWatch
from credhook.worker.queue.leases import reclaim

log = structlog.get_logger("credhook.worker")

BEAT_SECONDS: Final = 1.0
#: Seconds of silence after which a process counts as dead, unless leases are long.
_SILENCE_SECONDS: Final = 6.0
#: The same as a part of the lease. The longer of the two counts.
_SILENCE_PART: Final = 0.4
#: Maximum time between two beats, as a part of the silence.
_BEAT_PART: Final = 1 / 3
#: After a longer gap between our own beats, as a part of the silence, all other processes get the whole time again.
_GAP_PART: Final = 2 / 3


def silence_seconds(lease: float) -> float:
    """Return the seconds of silence after which a process counts as dead."""
    return min(lease, max(_SILENCE_SECONDS, _SILENCE_PART * lease))


class Heartbeat:
    """Beats for one worker process."""

    def __init__(
        self,
        store: SyncStore,
        settings: WorkerSettings,
        registry: Registry,
        worker: ConcurrentWorker,
        *,
        processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`processes`: how many its supervisor runs; `clock`: monotonic seconds."""
        self._store, self._name, self._worker, self._clock = store, worker.name, worker, clock
        self._silence = silence_seconds(settings.lease)
        self._redis_clock = ClockWatch(store, lease=settings.lease)
        #: Seconds between two beats.
        self.interval = min(BEAT_SECONDS, _BEAT_PART * self._silence)
        self._last = self._since = -float("inf")
        self._beating, self._left = threading.Lock(), False
        self._identity = announcements.WorkerAnnouncement(
            version=announcements.version(),
            pid=os.getpid(),
            processes=processes,
            handlers={handler.name: tuple(sorted(handler.types)) for handler in registry.handlers},
            slots=settings.concurrency,
            in_flight=0,
            platform=announcements.PlatformKeys(key=platform_key(settings.api_url, settings.queue), rate=settings.rate),
            config_fingerprint=announcements.fingerprint(
                {
                    "CREDHOOK_API_URL": settings.api_url,
                    "CREDHOOK_TOKEN_URL": settings.token_url,
                    "CREDHOOK_CLIENT_ID": settings.client_id,
                    "CREDHOOK_RATE": settings.rate,
                    "CREDHOOK_RETENTION": settings.retention,
                }
            ),
        )

    def beat(self) -> None:
        """Beat once. The intake of events logs an outage of Redis, so only a denied command is logged here."""
        with self._beating:
            try:
                self._beat()
            except STORE_ERRORS as error:
                if is_denied(error):
                    log.error("heartbeat_refused", hint=hint(error))  # noqa: TRY400  No traceback.

    def _beat(self) -> None:
        if self._left:
            return
        began = self._clock()
        # After a gap in our own beats, an outage of Redis may have silenced the others as well.
        if began - self._last > _GAP_PART * self._silence:
            self._since = began
        text = self._identity.model_copy(update=self._worker.announced).model_dump_json()
        keys, lasts_ms = self._store.keys, int(announcements.MISSED_SECONDS * 1_000)
        self._store.run("announce", [self._name, text, lasts_ms], keys=[keys.announcements, keys.heartbeats])
        now, step = self._redis_clock.look()  # After the announcement: a step between the two is noticed.
        if step:  # Beats from before the step look too old, or too young.
            self._since = began
        self._worker.show_to_rq()
        self._last = began
        if began - self._since >= self._silence:
            self._reclaim_silent(now)

    def leave(self) -> None:
        """Remove the announcement, and stop counting as alive. A beat after that would make this process missed.

        A silent process that this one has replaced is not missed again: its announcement goes as well.
        """
        keys, redis = self._store.keys, self._store.redis
        with self._beating:
            self._left = True
            try:
                announced, now = list(announcements.announced(redis.hgetall(keys.announcements))), self._store.clock()
                others = [process for process in announced if process.name != self._name]
                missed, missed_without_us = (announcements.missing(listed, now) for listed in (announced, others))
                replaced = (process.name for process in missed_without_us if process not in missed)
                redis.hdel(keys.announcements, self._name, *replaced)
                redis.zrem(keys.heartbeats, self._name)
            except STORE_ERRORS as error:
                log.debug("announcement_not_removed", error=type(error).__name__)

    def _reclaim_silent(self, now: int) -> None:
        """Take over the events of processes that have stopped beating. Each is reclaimed by one process only.

        A process of the same supervisor is left to it: the supervisor sees its death, and knows which event to blame.
        """
        key, redis = self._store.keys.heartbeats, self._store.redis
        silent: Any = redis.zrangebyscore(key, "-inf", now - self._silence * 1_000)
        family = announcements.family_of(self._name)
        for name in silent:
            is_ours = family and announcements.family_of(name.decode()) == family
            if not is_ours and redis.zrem(key, name):
                log.warning("worker_missed", silent=self._silence, hint="its host is down, or out of reach of Redis")
                reclaim(self._store, name.decode(), "host")
                announced = announcements.announced(redis.hgetall(self._store.keys.announcements))
                lasts_ms = announcements.MISSED_SECONDS * 1_000
                if lapsed := [process.name for process in announced if now - process.renewed > lasts_ms]:
                    redis.hdel(self._store.keys.announcements, *lapsed)
