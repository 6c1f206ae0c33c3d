"""The runs of handlers in this process, each until it has really ended.

A run can go on after its attempt: an `async def` swallows its cancellation, a plain function hangs in its thread.
Nothing ends it but the end of the process. Until then this process does not run the same handler for the same event
beside it, and a process that has too many such runs, or one that an event waits for, is to be replaced.
"""

import time
from collections.abc import Callable
from typing import Final

from credhook.worker.attempt.retry import Defer

#: Seconds after which a run that was given up counts as hung: until then it may be cleaning up.
HUNG_AFTER: Final = 3.0
#: Seconds until an event that met an earlier run of its own looks again: another process may take it by then.
LOOK_AGAIN: Final = 2.0
#: Seconds that an event waits for a run that was given up, before the process is to be replaced for it. An event
#: should not wait for ever where there is no other process, and one slow clean-up should not cost a process.
PATIENCE: Final = 60.0


class StillRunning(Defer):
    """An earlier run of the same handler for the same event has not ended yet. No attempt is spent."""

    def __init__(self) -> None:
        super().__init__(LOOK_AGAIN)


class Run:
    """One run of a handler for an event: its task, its thread, or both."""

    __slots__ = ("_key", "_parts", "_runs", "given_up_at", "is_awaited")

    def __init__(self, runs: "dict[tuple[str, str], Run]", key: tuple[str, str]) -> None:
        self._runs = runs
        self._key = key
        self._parts = 0
        #: By the clock of its `Runs`; None while its attempt waits for it.
        self.given_up_at: float | None = None
        #: Whether an attempt was postponed because of it.
        self.is_awaited = False

    def hold(self) -> None:
        """Its task or its thread has begun."""
        self._parts += 1
        self._runs[self._key] = self

    def release(self) -> None:
        """Its task or its thread has ended; with the last of them the run has."""
        self._parts -= 1
        if self._parts == 0:
            del self._runs[self._key]


class Runs:
    """All runs that have not ended."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Know of none. There may be `limit`; a process in which half of them hang is exhausted."""
        self.limit = limit
        self._clock = clock
        self._alive: dict[tuple[str, str], Run] = {}

    def keeps_waiting(self, event_id: str, handler: str) -> bool:
        """Whether the handler runs for the event already, so that an attempt has to wait; if so, that is noted."""
        alive = self._alive.get((event_id, handler))
        if alive is not None:
            alive.is_awaited = True
        return alive is not None

    def begin(self, event_id: str, handler: str) -> Run:
        """A run, which begins when it is first held.

        Raises:
            StillRunning: there is one.
        """
        if self.keeps_waiting(event_id, handler):
            raise StillRunning
        return Run(self._alive, (event_id, handler))

    def give_up(self, run: Run) -> None:
        """Nobody waits for this one any longer."""
        if run.given_up_at is None:
            run.given_up_at = self._clock()

    @property
    def hung(self) -> int:
        """How many go on although they were given up a while ago."""
        return sum(age > HUNG_AFTER for age, _ in self._given_up())

    @property
    def are_too_many(self) -> bool:
        """Whether the process is to be replaced, to be rid of those that hang."""
        keeps_waiting = any(run.is_awaited and age > PATIENCE for age, run in self._given_up())
        return keeps_waiting or self.hung * 2 > self.limit

    def _given_up(self) -> list[tuple[float, Run]]:
        """Each run that was given up, with the seconds since."""
        now, runs = self._clock(), self._alive.values()
        return [(now - run.given_up_at, run) for run in runs if run.given_up_at is not None]
