"""RQ's job and RQ's forking worker, held to running our jobs and no others.

`credhook worker --isolation fork` works on one event at a time, each in a process of its own, for handlers that are not
trusted to behave. worker/process/concurrent.py is the worker for all others.
"""

import asyncio
from types import FrameType
from typing import Any, cast

import structlog
from redis import Redis
from rq import Queue
from rq import Worker as ForkingWorker
from rq.exceptions import StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus

from credhook.stopping import stop_on
from credhook.store import Keys
from credhook.store.job import FAILURE_TTL
from credhook.worker.process.jobs import process
from credhook.worker.queue import scripts
from credhook.worker.queue.claim import read_job

log = structlog.get_logger("credhook.worker")


class NotOurJob(Exception):
    """The job names another function than ours; somebody else wrote it."""


class EventJob(Job):
    """A job that can do one thing, whatever its hash in Redis says.

    RQ would import and call what a job names: whoever can write to Redis could run code here.
    """

    #: The event that it processes; None for a job that is none of ours.
    event_id: str | None = None

    def restore(self, raw_data: Any) -> None:
        """Read the hash as RQ does, then forget every other thing that it could make RQ call."""
        super().restore(raw_data)
        self.event_id = read_job(self.id, raw_data[b"data"])
        self._success_callback_name = self._failure_callback_name = self._stopped_callback_name = None
        self.webhooks = []

    def _execute(self) -> Any:
        """Run the job's coroutine, and wait for nothing else: a handler may swallow its cancellation."""
        if self.event_id is None:
            raise NotOurJob(self.id)
        return asyncio.new_event_loop().run_until_complete(process(self.event_id))


class IsolatingWorker(ForkingWorker):
    """Forks for each event. It listens on exactly one queue: RQ pops from one without losing sight of the job."""

    job_class = EventJob

    def __init__(self, queue: str, *, name: str, connection: Redis) -> None:
        """`queue`: its name; `name`: this worker's, unique in the fleet."""
        #: Whether the operator has asked it to stop; if not, `work` returned because of a trouble with Redis.
        self.stop_asked = False
        self._keys = scripts.keys(Keys(queue))
        self._refuse = connection.register_script(scripts.REFUSE)
        super().__init__(
            [queue], name=name, connection=connection, serializer=JSONSerializer, log_job_description=False
        )

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Fork for the job, if it is one of ours; take it out of RQ's reach if it is not."""
        if isinstance(job, EventJob) and job.event_id is not None:
            super().execute_job(job, queue)
            return
        log.error("jobs_refused", jobs=[job.id], hint="somebody who can write to Redis has planted them")
        self._refuse(keys=self._keys, args=[FAILURE_TTL, job.id])

    def _install_signal_handlers(self) -> None:
        """RQ's own leave SIGHUP out."""
        stop_on(self.request_stop)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  As signals call it.
        """Finish the job at hand, then stop; asked again, end it.

        RQ's own writes to Redis from within the signal handler, beside whatever command was under way.
        """
        if self.stop_asked and self.horse_pid:
            self.kill_horse()
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
