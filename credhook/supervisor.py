"""A process that keeps child processes going: what dies is replaced, what is to end is asked, waited for, and made to.

The receiver's supervisor and the worker's say how a child is started, and add what is their own.
"""

import math
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from subprocess import Popen
from typing import Final, Generic, TypeVar

import structlog

from credhook.backoff import Backoff
from credhook.stopping import TOLD_EARLY, stop_on

#: Seconds between two looks at the children.
LOOK: Final = 0.1
#: Seconds that a child must have lived for its death to count as the first again.
LONG_LIFE: Final = 30.0

C = TypeVar("C", bound=Popen[bytes])


@dataclass(slots=True)
class _Place(Generic[C]):
    """Room for one child, and after its death for the next."""

    number: int
    #: Who runs there; one that has ended stays until it is reaped.
    child: C | None = None
    born: float = 0.0
    #: In a row, up to now.
    young_deaths: int = 0
    #: When the next is to be started; None while there is one, or if there is to be none.
    due: float | None = -math.inf


class Supervisor(ABC, Generic[C]):
    """Keeps so many children going, until a signal ends them all, or all have ended by themselves."""

    #: What they are; the log's events begin with it, as `worker_died` does.
    kind: str
    #: For whoever reads in the log that one has died.
    hint: str
    #: When one that died is replaced: at once after a long life, later if it keeps dying young.
    restarts = Backoff(first=0.1, longest=5.0)
    #: Seconds that they get to end after SIGTERM.
    grace: float
    #: Whether one that ends with 0 was meant to, and is not replaced.
    may_finish = False
    #: Exit code that another would end with as well: all are ended then, and we end with the same.
    hopeless: int | None = None
    #: Deaths of young ones in each place after which none alive means that none can live.
    tries = math.inf
    #: What they are sent if we are asked to stop once more.
    insistence: signal.Signals | None = None

    def __init__(
        self, number: int, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """`number`: of children; `clock`: tells monotonic seconds; `sleep`: waits so many of them."""
        self.clock = clock
        self._sleep = sleep
        self.log = structlog.get_logger(f"credhook.{self.kind}")
        # Its other end closes when we die, however we die: children that read the end of it drain and go.
        self.lifeline, self._held = os.pipe()
        self._places: list[_Place[C]] = [_Place(place) for place in range(number)]
        self._stopping = self._gave_up = False

    @abstractmethod
    def start(self, place: int) -> C:
        """Start another child in that place and give it the lifeline; after an OSError it is tried again."""

    def look_after(self, child: C) -> None:
        """Do what else is to be done at each look at a child that is alive."""

    def ended(self, child: C, code: int, place: int) -> None:
        """Do what else is to be done about a child that has ended, before another takes its place."""

    def run(self) -> int:
        """Keep them going; 0 once all have ended in order, `hopeless` if one has ended with that, otherwise 1."""
        stop_on(self._stop)
        while not self._stopping and any(place.child or place.due is not None for place in self._places):
            for place in self._places:
                self._look_at(place)
            self._sleep(LOOK)
        return self.drain()

    def drain(self) -> int:
        """Ask all to end, wait, make them; the exit code."""
        self._tell(signal.SIGTERM)
        deadline = self.clock() + self.grace
        while self._alive() and self.clock() < deadline:
            self._sleep(LOOK)
        for child in self._alive():
            self.log.error(self.kind + "_killed", pid=child.pid, reason="it did not end")
            child.kill()
        codes = {place.child.wait() for place in self._places if place.child}
        if self.hopeless in codes:
            return self.hopeless
        in_order = TOLD_EARLY | {0, -(self.insistence or 0)}
        return 1 if self._gave_up or codes - in_order else 0

    def _look_at(self, place: _Place[C]) -> None:
        if place.child is None:
            if place.due is not None and self.clock() >= place.due:
                self._fill(place)
        elif (code := place.child.poll()) is None:
            self.look_after(place.child)
        elif code == self.hopeless:
            self._stopping = True
        elif not self._stopping:  # Otherwise it may have had the signal that we have just had.
            self._reap(place, place.child, code)

    def _fill(self, place: _Place[C]) -> None:
        try:
            place.child, place.born, place.due = self.start(place.number), self.clock(), None
        except OSError as error:
            place.due = self.clock() + self.restarts.longest
            self.log.error(self.kind + "_not_started", error=type(error).__name__, retry_in=self.restarts.longest)  # noqa: TRY400  No traceback.

    def _reap(self, place: _Place[C], child: C, code: int) -> None:
        """Note that a child has ended, and when another takes its place."""
        place.child = None
        self.ended(child, code, place.number)
        if code == 0 and self.may_finish:
            return
        place.young_deaths = 0 if self.clock() - place.born > LONG_LIFE else place.young_deaths + 1
        if min(one.young_deaths for one in self._places) >= self.tries and not self._alive():
            self.log.error(self.kind + "_cannot_start", code=code, hint="see the lines above")
            self._gave_up = self._stopping = True
        else:
            wait = self.restarts.wait(1 + place.young_deaths)
            self.log.error(self.kind + "_died", pid=child.pid, code=code, restart_in=wait, hint=self.hint)
            place.due = self.clock() + wait

    def _stop(self, number: int, _: object) -> None:
        """Drain; asked again, insist. The end of a terminal may come twice, and insists on nothing."""
        if self._stopping and self.insistence and number != signal.SIGHUP:
            self._tell(self.insistence)
        self._stopping = True

    def _tell(self, number: signal.Signals) -> None:
        for child in self._alive():
            child.send_signal(number)

    def _alive(self) -> list[C]:
        return [place.child for place in self._places if place.child and place.child.poll() is None]
