"""Jobs one after the other, in a thread of the console's: they go on when the browser leaves."""

import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Final

import structlog
from redis import Redis

from credhook.console.jobs.job import Job, Task
from credhook.store import Keys

log = structlog.get_logger("credhook.console")

#: Jobs that are remembered once they are over, and that may wait.
_REMEMBERED: Final = 50
_MOST_WAITING: Final = 20
#: Seconds that a batch may take when all are to end.
_PATIENCE: Final = 5.0


class TooMany(Exception):
    """So many jobs wait already that another is not taken."""


class Jobs:
    """All jobs of this process."""

    def __init__(
        self,
        redis: Redis,
        index: Keys,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        chance: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        """Begin with none; they work on the events of this ledger."""
        self._redis = redis
        self._index = index
        self._clock = clock
        self._chance = chance
        self._jobs: dict[str, Job] = {}
        self._waiting: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def add(self, task: Task, *, who: str, which: str) -> Job:
        """Take a job that `who` wants done to events, which `which` says in words.

        Raises:
            TooMany: too many wait already.
        """
        if sum(not job.is_over for job in self._jobs.values()) >= _MOST_WAITING:
            raise TooMany
        job = Job(self._chance(), task, who, which, self._clock())
        over = [id_ for id_, one in self._jobs.items() if one.is_over]
        for id_ in over[: max(0, len(over) - _REMEMBERED + 1)]:
            del self._jobs[id_]
        self._jobs[job.id] = job
        log.info("console_" + task.verb, who=who, events=which, job=job.id)
        self._waiting.put(job)
        return job

    def get(self, id_: str) -> Job | None:
        """The job of that id, if it is remembered."""
        return self._jobs.get(id_)

    def all(self) -> list[Job]:
        """Those that are remembered, the newest first."""
        return list(self._jobs.values())[::-1]

    def stop(self) -> None:
        """End them all, each between two batches; one that is still looking for its events has changed nothing."""
        for job in self.all():
            job.stop()
        self._waiting.put(None)
        self._thread.join(_PATIENCE)

    def _work(self) -> None:
        while job := self._waiting.get():
            job.run(self._redis, self._index, self._clock)
            log.info(
                "console_job_ended",
                who=job.who,
                job=job.id,
                verb=job.task.verb,
                ended=str(job.stage),
                events=job.total,
                done=job.finished,
                **({"error": job.error} if job.error else {}),
            )
