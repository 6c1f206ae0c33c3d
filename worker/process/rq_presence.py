"""What RQ's tools see of a worker that is none of RQ's own, and how it obeys them."""

import asyncio
import os
import signal
from abc import abstractmethod
from collections.abc import Collection
from typing import Any, Final

import structlog
from redis import Redis
from redis.exceptions import RedisError
from rq.command import parse_payload
from rq.suspension import WORKERS_SUSPENDED
from rq.worker import BaseWorker, WorkerStatus

from credhook.worker.attempt.attempt import Attempt, Interruption

log = structlog.get_logger("credhook.worker")

#: Seconds between two signs of life to RQ, and looks for `rq suspend`.
BEAT: Final = 1.0
#: Seconds that one look for a command waits.
_LISTEN: Final = 1.0
#: Characters that the log repeats of a command that nobody knows.
_LONGEST_COMMAND: Final = 64


class VisibleWorker(BaseWorker):
    """A worker that registers, beats, and obeys suspend, stop-job and shutdown, whatever it does besides."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._suspended = False
        #: Since the last beat.
        self._finished = 0

    def _set_connection(self, connection: Redis) -> Redis:
        """Leave its time-out as it is. RQ makes seven minutes of it, for its own workers wait for jobs by it."""
        return connection

    @abstractmethod
    def _under_way(self) -> Collection[Attempt]:
        """What may be stopped."""

    @abstractmethod
    def _before_beat(self) -> None:
        """Look at what else is to be looked at once a second."""

    async def _beat(self, redis: Any) -> None:
        """Show RQ that this worker lives, and look whether RQ wants it suspended."""
        while True:
            self._before_beat()
            pipeline = redis.pipeline(transaction=False)
            pipeline.exists(WORKERS_SUSPENDED)
            pipeline.exists(self.key)
            # RQ's methods only put commands into the pipeline that they are given, whichever kind it is.
            self.heartbeat(pipeline=pipeline)
            self.set_state(self._status(), pipeline=pipeline)
            pipeline.hincrby(self.key, "successful_job_count", self._finished)
            self._finished = 0
            try:
                suspended, registered, *_ = await pipeline.execute()
                if not registered:
                    await redis.delete(self.key)  # The beat itself has made it anew, without the rest.
                    await asyncio.to_thread(self.register_birth)
            except (RedisError, OSError):
                pass  # Whoever takes events says so.
            else:
                if bool(suspended) != self._suspended:
                    log.info("worker_suspended" if suspended else "worker_resumed")
                self._suspended = bool(suspended)
            await asyncio.sleep(BEAT)

    @property
    def in_flight(self) -> int:
        """How many events are under way."""
        return len(self._under_way())

    def _status(self) -> WorkerStatus:
        if self._suspended:
            return WorkerStatus.SUSPENDED
        return WorkerStatus.BUSY if self._under_way() else WorkerStatus.IDLE

    async def _listen(self, redis: Any) -> None:
        """Obey the commands that RQ's tools send to this worker."""
        async with redis.pubsub() as channel:
            await channel.subscribe(self.pubsub_channel_name)
            while True:
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=_LISTEN)
                if message is not None:
                    self._handle_command(parse_payload(message))

    def _handle_command(self, payload: dict[str, Any]) -> None:
        command, job = payload.get("command"), payload.get("job_id", "")
        if command == "shutdown":
            log.warning("shutdown_commanded", hint="by one of RQ's tools, or by whoever can write to Redis")
            os.kill(os.getpid(), signal.SIGINT)
        elif command == "stop-job" and (found := [one for one in self._under_way() if one.claim.job == job]):
            log.warning("job_stopped", job=job)
            for attempt in found:
                attempt.interrupt(Interruption.STOPPED)
        else:
            log.info("command_ignored", command=str(command)[:_LONGEST_COMMAND])
