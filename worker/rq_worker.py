"""The RQ worker that runs our jobs, and no others.

It stays in one process: `rq.Worker` forks for every job, and a job that waits for an API then costs a quarter of a
second before it has begun. What the fork protects from, a handler that takes the process with it, the ledger's lease
protects from as well.
"""

import asyncio
import functools
import logging
from types import FrameType
from typing import Any, cast

import structlog
from redis import Redis
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.job import Job
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus

from receiver.ledger import JOB_FUNCTION
from worker.jobs import process

log = structlog.get_logger("credhook.worker")


class NotOurs(Exception):
    """The job names another function than ours; somebody else wrote it."""


class EventJob(Job):
    """A job that can do one thing, whatever its hash in Redis says.

    RQ would import and call what a job names: whoever can write to Redis could run code here.
    """

    def restore(self, raw_data: Any) -> None:
        """Read the hash as RQ does, then forget every other thing that it could make RQ call."""
        super().restore(raw_data)
        self._success_callback_name = self._failure_callback_name = self._stopped_callback_name = None
        self.webhooks = []

    def _execute(self) -> Any:
        """Run the job's coroutine on the process's one event loop, where RQ would make a loop for each job."""
        if self.func_name != JOB_FUNCTION or len(self.args) != 1 or not isinstance(self.args[0], str) or self.kwargs:
            raise NotOurs(self.id)
        return _runner().run(process(self.args[0]))


@functools.cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


class Scheduler(RQScheduler):
    """RQ's scheduler, which moves jobs from its schedule to the queue when they are due, without RQ's process for it.

    A forked scheduler holds a copy of the worker's connection. Kill the worker, and Redis still sees that connection
    waiting for a job: the next one goes to nobody.
    """

    def __init__(self, queue: str, *, connection: Redis) -> None:
        """`queue`: whose jobs; of all schedulers of a queue, the one with RQ's lock works."""
        super().__init__([queue], connection, logging_level=logging.WARNING, serializer=JSONSerializer)
        self.register_birth()

    def tick(self) -> None:
        """What RQ's scheduler does once a second."""
        rq: Any = self  # Its methods have no types.
        if self.should_reacquire_locks:
            rq.acquire_locks()
        rq.heartbeat()
        rq.enqueue_scheduled_jobs()


class EventWorker(SimpleWorker):
    """Takes jobs from exactly one queue: RQ pops from one queue without a moment at which the job is in no list."""

    job_class = EventJob

    def __init__(self, queue: str, *, name: str, connection: Redis) -> None:
        """`queue`: its name; `name`: this worker's, unique in the fleet."""
        #: Whether the operator has asked it to stop; if not, `work` returned because of a trouble with Redis.
        self.stop_asked = False
        super().__init__(
            [queue], name=name, connection=connection, serializer=JSONSerializer, log_job_description=False
        )

    def request_stop(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  As signals call it.
        """Finish the job at hand, then stop."""
        self.stop_asked = True
        self._stop_requested = True
        if self.get_state() != WorkerStatus.BUSY:
            raise StopRequested

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """Log which error it was; RQ would log the traceback with its message."""
        log.error("job_failed", job=job.id, exc_info=exc_info[1])

    def handle_job_failure(
        self, job: Job, queue: Queue, started_job_registry: Any = None, exc_string: str = ""
    ) -> None:
        """Let RQ keep the failed job, with the last line of the traceback up to the class of the error."""
        last = exc_string.strip().rpartition("\n")[2]
        cast(Any, super()).handle_job_failure(job, queue, started_job_registry, last.partition(":")[0])
