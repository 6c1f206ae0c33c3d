"""The admin listener of `credhook worker`: it runs in the supervisor and answers for all its processes."""

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from rq.suspension import WORKERS_SUSPENDED

from credhook.listener.admin import bind_setting, create_admin, serve_admin
from credhook.metrics.counting import gathered
from credhook.metrics.figures import TargetFigures
from credhook.settings import WorkerSettings
from credhook.store.announcements import WorkerAnnouncement, announced
from credhook.store.errors import STORE_ERRORS
from credhook.store.health import Check, SharedExamination, ask
from credhook.store.store import AsyncStore
from credhook.worker.platform.limits import platform_key, read_pause, request_pause


def start_admin(
    settings: WorkerSettings,
    address: str,
    folder: str,
    is_alive: Callable[[], bool],
    names: Callable[[], Sequence[str]],
) -> None:
    """Answer on `host:port` from a thread with its own event loop.

    `folder`: where the processes count; `is_alive`: the supervisor's answer to /healthz; `names`: of the processes that
    there should be, "" for each that does not run now.
    """
    listener = bind_setting(address, "CREDHOOK_ADMIN")

    async def serve() -> None:
        store = settings.open_store()
        examining = SharedExamination(functools.partial(ask, store), durability=None)

        async def examine() -> Sequence[Check]:
            checks = await examining()
            return [*checks, await check_workers(store, names())] if checks[0].passed else checks

        target = TargetFigures(examine, part="worker", certificate=settings.client_certfile)
        app = create_admin(
            store,
            examine,
            registry=gathered(folder),
            others=[target, PlatformFigures(store, settings)],
            is_alive=is_alive,
        )
        await serve_admin(listener, app)

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True, name="admin").start()


async def check_workers(store: AsyncStore, names: Sequence[str]) -> Check:
    """Check that our processes may take events: a rollout must not replace good workers by refused ones."""
    texts: Sequence[bytes | str | None] = []
    with suppress(*STORE_ERRORS):  # As if none had started: the next answer tells.
        texts = await store.redis.hmget(store.keys.announcements, list(names)) if names else []
    announcements = {name.encode(): text for name, text in zip(names, texts, strict=False) if text}
    workers = [WorkerAnnouncement.model_validate_json(worker.text) for worker in announced(announcements)]
    refusal = next((worker.credential_error for worker in workers if worker.credential_error), "")
    started = sum(worker.started for worker in workers)
    waiting = f"{started} of its {len(names)} processes have started; see their log"
    return Check("workers", 0 < len(names) == started and not refusal, refusal or waiting)


@dataclass(frozen=True)
class PlatformFigures:
    """Figures that the fleet shares about one platform, read from Redis at each scrape."""

    store: AsyncStore
    settings: WorkerSettings

    async def __call__(self) -> list[Metric]:
        """Return all figures; none if Redis does not answer."""
        pipeline = self.store.redis.pipeline(transaction=False)
        pipeline.exists(WORKERS_SUSPENDED)
        request_pause(pipeline, platform_key(self.settings.api_url, self.settings.queue))
        try:
            suspended, *pause = await pipeline.execute()
        except STORE_ERRORS:
            return []
        state = read_pause(*pause)
        limit = min((rate for rate in (self.settings.rate, state.passed) if rate is not None), default=None)
        meaning = "Seconds until the fleet may call the platform again; 0 if now."
        return [
            GaugeMetricFamily("credhook_platform_pause_seconds", meaning, state.seconds),
            GaugeMetricFamily(
                "credhook_platform_rate_limit",
                "Calls a second to the platform: CREDHOOK_RATE, or what passed before a 429; 0 without a limit.",
                limit or 0,
            ),
            GaugeMetricFamily("credhook_workers_suspended", "1 while `rq suspend` stops workers, else 0.", suspended),
        ]
