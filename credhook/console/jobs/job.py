"""A job: one piece of work on many events, how far it has come, and how it ended."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

import click
from redis import Redis

from credhook.store import Keys
from credhook.worker.commands.search.batches import BATCH, batched, sentence
from credhook.worker.commands.search.selection import EventSummary


class Stage(StrEnum):
    """Where a job stands."""

    WAITING = "waiting"
    READING = "reading"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


#: Stages after which there is no other.
OVER: Final = frozenset({Stage.DONE, Stage.STOPPED, Stage.FAILED})


@dataclass(frozen=True, slots=True)
class Task:
    """What a job does to events.

    Attributes:
        verb: `replay` or `erase`.
        past: the verb for what has been done.
        find: the events, in the order in which they are worked on.
        begin: done before the first of them.
        step: does a few hundred, and says what became of each.
        finish: done after the last of them.
        done: outcomes that count as done → what to say of them besides, or "".
        left: the other outcomes → why, in words that follow a number.
    """

    verb: str
    past: str
    find: Callable[[Redis, Keys], Sequence[EventSummary]]
    step: Callable[[Sequence[EventSummary]], Sequence[bytes]]
    done: Mapping[str, str]
    left: Mapping[str, str]
    begin: Callable[[], None] = lambda: None
    finish: Callable[[Sequence[EventSummary]], None] = lambda _: None


@dataclass(slots=True)
class Job:
    """One of them. A thread works on it, and pages read it meanwhile: each attribute is replaced and never half set.

    `total` events were found, of which so many have been `worked` on; `which` says in words which, and `error` is the
    class of the error that has ended it, or "".
    """

    id: str
    task: Task
    who: str
    which: str
    asked: datetime
    stage: Stage = Stage.WAITING
    total: int = 0
    worked: int = 0
    error: str = ""
    ended: datetime | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """End it between two batches."""
        self._stopped.set()

    def run(self, redis: Redis, index: Keys, clock: Callable[[], datetime]) -> None:
        """Do it, until all is done, it is stopped, or Redis fails; nothing is raised, since others wait behind it."""
        try:
            self.stage = self._work(redis, index)
        except click.ClickException as error:  # Such as a cause that has been forgotten meanwhile.
            self.error, self.stage = error.message, Stage.FAILED
        except Exception as error:  # noqa: BLE001
            self.error, self.stage = type(error).__name__, Stage.FAILED
        finally:
            self.ended = clock()

    def _work(self, redis: Redis, index: Keys) -> Stage:
        if self._stopped.is_set():
            return Stage.STOPPED
        self.stage = Stage.READING
        events = self.task.find(redis, index)
        self.total, self.stage = len(events), Stage.RUNNING
        self.task.begin()
        for batch in batched(events, BATCH):
            if self._stopped.is_set():
                return Stage.STOPPED
            self.outcomes = self.outcomes + Counter(outcome.decode() for outcome in self.task.step(batch))
            self.worked += len(batch)
        self.task.finish(events)
        return Stage.DONE

    @property
    def is_over(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.stage in OVER

    @property
    def finished(self) -> int:
        """Events that it was done to."""
        return sum(self.outcomes[name] for name in self.task.done)

    @property
    def summary(self) -> str:
        """What was done and what was not, in one line."""
        return sentence(self.outcomes, self.task.past, self.task.done, self.task.left)
