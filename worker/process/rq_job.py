"""The job of an event, for RQ's own worker, which forks for each job and so handles one event at a time.

`credhook worker` claims events itself and runs no jobs. worker/README.md says how to start RQ's worker. For RQ, a job
fails only if Redis or our own code fails. worker/attempt/ decides about all other failures, and RQ keeps no results.
"""

import asyncio
import functools
import math
import time
from typing import Any, Final

import rq
import structlog
from rq.job import Job

from credhook import tracing
from credhook.logs import configure_logs
from credhook.settings import WorkerSettings
from credhook.store import State
from credhook.store.job import event_of
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.handlers.loading import load_for_work
from credhook.worker.handlers.registry import Registry
from credhook.worker.wiring import build_worker

log = structlog.get_logger("credhook.worker")

#: RQ stops after a maximum of retries. The policy in retry.py stops long before this one.
_RQ_NEVER_STOPS: Final = 1_000_000


class JobFailed(Exception):
    """The job failed for RQ, which keeps and logs the message: only the class of the error."""


async def process() -> rq.Retry | None:
    """Handle the event that the current job's id names.

    Returns:
        `rq.Retry` if RQ's scheduler is to start another attempt later; None otherwise.
    """
    job = rq.get_current_job()
    if job is None or (event_id := event_of(job.origin, job.id)) is None:
        raise TypeError("the job's id names no event of the queue")
    settings, registry = _load_once()
    try:
        async with build_worker(settings, registry) as parts:
            await parts.lifespan.start()
            claim = await parts.processor.claims.claim(event_id)
            if isinstance(claim, str):
                log.info("event_left", webhook_id=event_id, reason=claim)
                return None
            settlement, _ = await parts.processor.handle(Attempt(claim))
    finally:
        tracing.flush()  # RQ's worker forks for each job, and the fork ends with it.
    if settlement is None or settlement.state is not State.WAITING:
        return None
    # RQ counts whole seconds and rounds the time down, and an interval of 0 would enqueue at once.
    return rq.Retry(max=_RQ_NEVER_STOPS, interval=max(1, math.ceil(time.time() % 1 + settlement.wait)))


@functools.cache
def _load_once() -> tuple[WorkerSettings, Registry]:
    # Without a configuration, structlog would print messages of errors and local variables.
    if not structlog.is_configured():
        configure_logs()
    settings = WorkerSettings()
    tracing.start("worker")
    return settings, load_for_work(settings.handlers, settings.handler_options)


class EventJob(Job):
    """A job that can only process an event.

    RQ would import and call any function that a job names, so that a client of Redis could run code here.
    """

    #: The event that it processes; None if the job is not ours.
    event_id: str | None = None

    def restore(self, raw_data: Any) -> None:
        """Read the hash as RQ does, then drop all that it could make RQ call. The id says which event it is for."""
        super().restore(raw_data)
        self.event_id = event_of(str(self.origin), self.id)
        self._success_callback_name = self._failure_callback_name = self._stopped_callback_name = None
        self.webhooks = []

    def _execute(self) -> Any:
        """Run the job's coroutine without a runner, which would wait for handlers that swallow their cancellation."""
        if self.event_id is None:
            raise TypeError("the job's id names no event of the queue")
        try:
            return asyncio.new_event_loop().run_until_complete(process())
        except Exception as error:
            log.error("job_failed", job=self.id, exc_info=error)  # noqa: TRY400  Our processor keeps the message out.
            raise JobFailed(type(error).__name__) from None
