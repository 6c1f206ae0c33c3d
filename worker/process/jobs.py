"""The job, `process`: claim the event, fetch what it refers to, run the handlers, settle.

Stock `rq worker` can run it, one event at a time; concurrent.py keeps many under way. It never fails in RQ's eyes:
whatever goes wrong is decided in worker/attempt/ and kept in the ledger, so that RQ stores neither results nor
tracebacks.
"""

import asyncio
import functools
import math
from typing import Final

import rq
import structlog

from credhook import tracing
from credhook.logs import configure_logs
from credhook.metrics.counting import flush
from credhook.store import State
from credhook.store.job import event_of
from credhook.worker.api.oauth.tokens import TokenCache
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.attempt.parts import assembled
from credhook.worker.handlers.loading import load
from credhook.worker.handlers.registry import Registry
from credhook.worker.queue.claim import NotClaimed
from credhook.worker.settings import WorkerSettings

log = structlog.get_logger("credhook.worker")

#: RQ counts retries and stops at a maximum of its own; the policy in retry.py stops long before.
_RQ_NEVER_STOPS: Final = 1_000_000


async def process(event_id: str | None = None) -> rq.Retry | None:
    """Work on one event, as the job that the receiver enqueued: the one that its id says, if none is given.

    Returns:
        `rq.Retry` if another attempt is due later, which RQ's scheduler then starts; None otherwise.
    """
    event_id = event_id or _of_current_job()
    settings, registry, token = _shared()
    async with assembled(settings, registry, token=token) as parts:
        background = parts.processor.leases.keep(), parts.breaker.watch()
        beside = [asyncio.create_task(work) for work in background]
        try:
            await parts.lifespan.start()
            claim = await parts.claims.claim(event_id)
            if isinstance(claim, NotClaimed):
                log.info("event_left", webhook_id=event_id, reason=claim.value)
                return None
            settlement, _ = await parts.processor.handle(Attempt(claim), parts.new_slot())
        finally:
            flush()  # A fork ends with its job.
            tracing.flush()
            for task in beside:
                task.cancel()
            await asyncio.wait(beside, timeout=1.0)
    if settlement is None or settlement.state is not State.WAITING:
        return None
    # RQ counts whole seconds, and an interval of 0 would enqueue at once.
    return rq.Retry(max=_RQ_NEVER_STOPS, interval=max(1, math.ceil(settlement.wait)))


def _of_current_job() -> str:
    job = rq.get_current_job()
    event_id = event_of(job.id, ()) if job else None
    if event_id is None:
        raise TypeError("neither its arguments nor its id say which event this job is for")
    return event_id


def prepare() -> None:
    """Read settings and load handlers before the first job, so that forks need not do it again and again."""
    _shared()


@functools.cache
def _shared() -> tuple[WorkerSettings, Registry, TokenCache]:
    """What all jobs of a process have in common: reading it anew would cost more than the job."""
    # Under stock `rq worker`, where structlog's own default would print messages and locals.
    if not structlog.is_configured():
        configure_logs()
    settings = WorkerSettings()
    tracing.start("worker")
    return settings, load(settings.handlers), TokenCache()
