"""The job of an event, `process`, and RQ's classes that run this job and no other.

`credhook worker --isolation fork` runs `IsolatingWorker`: one event at a time, each in a process of its own, for
handlers that are not trusted to behave. The job never fails for RQ: worker/attempt/ decides what to do about a failure,
and Redis keeps no result or traceback.
"""

import asyncio
import functools
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, cast

import rq
import structlog
from rq.exceptions import StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus

from credhook import tracing
from credhook.logs import configure_logs
from credhook.settings import WorkerSettings
from credhook.store import State
from credhook.store.errors import StoreRefusal, wrong_schema
from credhook.store.job import FAILURE_TTL, event_of
from credhook.store.store import SyncStore
from credhook.supervisor import stop_on
from credhook.worker import metrics
from credhook.worker.api.client import transport_from
from credhook.worker.api.errors import ApiError
from credhook.worker.api.token import ClientCredentials
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.handlers.loading import load
from credhook.worker.handlers.registry import Registry
from credhook.worker.process.supervisor import HAND_BACK
from credhook.worker.wiring import build_worker

log = structlog.get_logger("credhook.worker")

#: RQ stops after a maximum of retries. The policy in retry.py stops long before this one.
_RQ_NEVER_STOPS: Final = 1_000_000
#: Seconds until a forking worker that got no token asks again.
_TOKEN_PAUSE: Final = 10.0


async def process() -> rq.Retry | None:
    """Handle the event that the current job's id names.

    Returns:
        `rq.Retry` if RQ's scheduler is to start another attempt later; None otherwise.
    """
    job = rq.get_current_job()
    if job is None or (event_id := event_of(job.origin, job.id)) is None:
        raise TypeError("the job's id names no event of the queue")
    settings, registry, auth = shared()
    async with build_worker(settings, registry, auth=auth) as parts:
        processor = parts.processor
        try:
            await parts.lifespan.start()
            claim = await processor.claims.claim(event_id)
            if isinstance(claim, str):
                log.info("event_left", webhook_id=event_id, reason=claim)
                return None
            settlement, _ = await processor.handle(Attempt(claim))
        finally:
            tracing.flush()  # A fork ends with its job.
    if settlement is None or settlement.state is not State.WAITING:
        return None
    # RQ counts whole seconds and rounds the time down, and an interval of 0 would enqueue at once.
    return rq.Retry(max=_RQ_NEVER_STOPS, interval=max(1, math.ceil(time.time() % 1 + settlement.wait)))


@functools.cache
def shared() -> tuple[WorkerSettings, Registry, ClientCredentials]:
    """Read once what all jobs of a process share: it would cost more than the job."""
    # Under stock `rq worker`, where structlog's own default would print messages and locals.
    if not structlog.is_configured():
        configure_logs()
    settings = WorkerSettings()
    tracing.start("worker")
    return settings, load(settings.handlers), ClientCredentials.from_settings(settings)


def _renew_token() -> str:
    """Have a token that forks inherit; return why there is none, or "".

    A fork asks for the token: the thread of our HTTP client would not survive the forks for the jobs.
    """
    settings, _, auth = shared()
    if auth.has_token:
        return ""
    answer, sender = multiprocessing.Pipe(duplex=False)
    if not (pid := os.fork()):
        try:
            sender.send((asyncio.run(auth.token(transport_from(settings))), ""))
        except Exception as error:  # noqa: BLE001  The parent must hear of any error.
            sender.send((None, str(error) if isinstance(error, ApiError) else type(error).__name__))
        finally:
            os._exit(0)
    sender.close()
    token, refusal = answer.recv()
    os.waitpid(pid, 0)
    metrics.TOKEN_FETCHES.add("refused" if refusal else "granted")
    if token:
        auth.adopt(token)
    return str(refusal)


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
        return asyncio.new_event_loop().run_until_complete(process())


class IsolatingWorker(rq.Worker):
    """Forks for each event. It listens on one queue only: RQ then pops a job without losing it when the worker dies."""

    job_class = EventJob

    def __init__(self, store: SyncStore, *, name: str, announce: Callable[[str], object] = lambda _: None) -> None:
        """`name`: this worker's, unique in the fleet; `announce`: told why there is no token."""
        self._store, self._announce = store, announce
        #: False if `work` returned because Redis failed.
        self.stop_asked = False
        super().__init__(
            [store.queue], name=name, connection=store.redis, serializer=JSONSerializer, log_job_description=False
        )

    def _set_ip_address(self, _: Any) -> None:
        """Do without, as `ConcurrentWorker` does."""
        self.ip_address = "unknown"

    def check_for_suspension(self, burst: bool) -> None:
        """Take no job while RQ suspends workers, or while the platform gives us no token.

        Raises:
            StoreRefusal: the queue's data has another schema. RQ pops jobs without a script of ours. If it waits for a
                job when the number changes, it fails that one, and the newer version's sweeper puts the event back.
        """
        if advice := wrong_schema(self._store.queue, self._store.redis.get(self._store.keys.schema)):
            raise StoreRefusal(advice)
        super().check_for_suspension(burst)
        while not self.stop_asked and (refusal := _renew_token()):
            self._announce(refusal)
            log.warning("token_refused", error=refusal, seconds=_TOKEN_PAUSE)
            time.sleep(_TOKEN_PAUSE)
            super().check_for_suspension(burst)
        self._announce("")

    def execute_job(self, job: Job, queue: rq.Queue) -> None:
        """Fork for the job; move a job that is not ours out of the queue."""
        if isinstance(job, EventJob) and job.event_id is not None:
            super().execute_job(job, queue)
            return
        log.error("jobs_refused", jobs=[job.id], hint="another client of this Redis has enqueued them")
        refused = self._store.keys.refused + job.id
        pipeline = self.connection.pipeline()
        pipeline.expire(job.key, FAILURE_TTL)
        pipeline.rename(job.key, refused)
        pipeline.lrem(self._store.keys.intermediate, 1, job.id)
        pipeline.execute()

    def _install_signal_handlers(self) -> None:
        """Handle signals by `request_stop`, the supervisor's second request included."""
        stop_on(self.request_stop)
        signal.signal(HAND_BACK, self.request_stop)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  As signals call it.
        """Finish the current job, then stop. A second signal kills the job: its event returns when its lease lapses.

        RQ's own method writes to Redis inside the signal handler, where another command may be under way.
        """
        if self.stop_asked:
            if self.horse_pid:
                self.kill_horse()
            return
        self.stop_asked = True
        self._stop_requested = True
        if self.get_state() != WorkerStatus.BUSY:
            raise StopRequested

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """Log the error. RQ would log the traceback with its message, which may hold personal data."""
        log.error("job_failed", job=job.id, exc_info=exc_info[1])

    def handle_job_failure(
        self, job: Job, queue: rq.Queue, started_job_registry: Any = None, exc_string: str = ""
    ) -> None:
        """Let RQ keep the failed job with the class of the error only."""
        last = exc_string.strip().rpartition("\n")[2]
        cast(Any, super()).handle_job_failure(job, queue, started_job_registry, last.partition(":")[0])
