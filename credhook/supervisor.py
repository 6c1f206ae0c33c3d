"""Keep child processes running: replace a child that dies, and stop all children on a signal."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from subprocess import Popen
from types import FrameType
from typing import Final, Generic, TypeVar

import structlog

from credhook.backoff import Backoff, Waits

#: SIGTERM from a supervisor, Ctrl-C, and SIGHUP from a terminal or a session that is closed.
_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stops() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a process. If `nohup` has set SIGHUP to be ignored, it stays ignored."""
    return tuple(
        number for number in _STOPS if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    )


def stop_on(handler: Callable[[int, FrameType | None], object]) -> None:
    """Call the handler at each signal that stops a process."""
    for number in stops():
        signal.signal(number, handler)


def stop_with_supervisor(lifeline: int) -> None:
    """Stop this process in order when its supervisor, which holds the other end of the pipe, has died in any way."""

    def wait() -> None:
        os.read(lifeline, 1)
        structlog.get_logger("credhook").warning("supervisor_gone")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="lifeline").start()


def ignore_hangup() -> None:
    """Ignore SIGHUP in this process and its children, unless they belong to a terminal, which sends it when it closes.

    Operators send SIGHUP to a service that should load its certificate again.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


#: Seconds between two checks of the children.
CHECK_SECONDS: Final = 0.1
#: Seconds that a child must have lived for its death to count as the first again.
LONG_LIFE_SECONDS: Final = 30.0
#: Waits before a dead child is replaced.
RESTARTS: Final = Backoff(first=0.1, longest=4.0)
#: Seconds without a check of the children after which the supervisor itself counts as stalled.
STALLED_SECONDS: Final = 10.0
#: Exit code of a child whose settings or handlers are wrong. Every successor would end with the same code.
FATAL_CODE: Final = 2

#: Variable of prometheus_client: the folder in which children count.
FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
#: Variable that names a child's place among the children, and so its files in that folder.
PLACE: Final = "PROMETHEUS_MULTIPROC_PLACE"

C = TypeVar("C", bound=Popen[bytes])


class End(Enum):
    """How a child has ended."""

    #: It was told to stop, or its work is done. No other child takes its place.
    IN_ORDER = auto()
    #: Another child takes its place.
    DEATH = auto()
    #: Its settings or handlers are wrong, so all children stop.
    FATAL = auto()


@dataclass(slots=True)
class _Place(Generic[C]):
    """Room for one child, and after its death for the next."""

    number: int
    #: The running child. A child that has ended stays here until it is reaped.
    child: C | None = None
    started: float = 0.0
    #: Waits before the next child. They grow while children die young.
    waits: Waits = field(default_factory=lambda: Waits(RESTARTS))
    #: When to start the next child; None while a child runs, or if none will follow.
    due: float | None = -math.inf


class Supervisor(Generic[C]):
    """Keeps a number of children running until a signal ends them all, or each has finished its work."""

    def __init__(
        self,
        kind: str,
        number: int,
        start: Callable[[int, int], C],
        *,
        grace: float,
        force_signal: signal.Signals | None = None,
        on_exit: Callable[[int], None] = lambda _: None,
        before_drain: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare to run `number` children. Log events begin with their `kind`: `worker_died`.

        `start` starts the child of a place with the lifeline; after an OSError it is called again later. Children get
        `grace` seconds to end after SIGTERM, and the `force_signal` if the supervisor gets a second signal to stop.
        `on_exit` is called with the place of each ended child, and `before_drain` before the children are stopped.
        """
        self.log = structlog.get_logger(f"credhook.{kind}")
        self.clock, self._sleep = clock, sleep
        self._kind, self._start, self._grace = kind, start, grace
        self._force_signal, self._on_exit, self._before_drain = force_signal, on_exit, before_drain
        # A child may have been told to stop before it handled signals.
        self._stop_codes = {0, *(-number for number in _STOPS), -(force_signal or 0)}
        # The children drain when the write end closes, which happens however this process dies.
        self.lifeline, self._write_end = os.pipe()
        self._places: list[_Place[C]] = [_Place(place) for place in range(number)]
        #: True after a signal, or after a child that no successor could replace.
        self._stopping = False
        self._code = 0
        #: When the children were last checked.
        self._checked = clock()

    def is_alive(self) -> bool:
        """Return True if the children are being checked, or drain. A full pipe of logs would stop the checks."""
        return self._stopping or self.clock() - self._checked < STALLED_SECONDS

    def expected(self, number: int | None = None) -> list[C | None]:
        """Return a child for each of the first places, or None where the next child has not started.

        Finished places are left out. `number`: of places; None for all.
        """
        return [place.child for place in self._places[:number] if place.child or place.due is not None]

    def add_place(self) -> int:
        """Add a place that has no child until `start_place`, and return its number."""
        self._places.append(_Place(len(self._places), due=None))
        return len(self._places) - 1

    def start_place(self, number: int) -> None:
        """Start a child in a place whose work was done, unless one runs there or is about to."""
        place = self._places[number]
        if place.child is None and place.due is None:
            place.due = self.clock()

    def check(self, child: C) -> None:
        """Check a running child."""

    def ended(self, child: C, code: int) -> End:  # noqa: ARG002  Subclasses look at the child.
        """Clean up after an ended child, and return how it ended. By default, only a stop is an end in order."""
        if code == FATAL_CODE:
            return End.FATAL
        return End.IN_ORDER if self._stopping and code in self._stop_codes else End.DEATH

    def run(self) -> int:
        """Run until all children have ended; return the exit code: 0 in order, the fatal code, or 1."""
        stop_on(self._stop)
        while not self._stopping and self.expected():
            for place in self._places:
                self._check(place)
            self._checked = self.clock()
            self._sleep(CHECK_SECONDS)
        return self._drain()

    def _drain(self) -> int:
        """Stop all children, kill them if they do not end in time, and return the exit code."""
        self._before_drain()
        self._send(signal.SIGTERM)
        deadline = self.clock() + self._grace
        while self._alive() and self.clock() < deadline:
            self._sleep(CHECK_SECONDS)
        for child in self._alive():
            self.log.error(self._kind + "_killed", pid=child.pid, reason="it did not end")
            child.kill()
        for child in [place.child for place in self._places if place.child]:
            end = self.ended(child, child.wait())
            if end is not End.IN_ORDER:
                self._code = max(self._code, FATAL_CODE if end is End.FATAL else 1)
        return self._code

    def _check(self, place: _Place[C]) -> None:
        if place.child is None:
            if place.due is not None and self.clock() >= place.due:
                self._fill(place)
        elif (code := place.child.poll()) is None:
            self.check(place.child)
        elif not self._stopping:  # Otherwise the signal that stops us may have ended the child.
            self._reap(place, place.child, code)

    def _fill(self, place: _Place[C]) -> None:
        try:
            place.child, place.started, place.due = self._start(place.number, self.lifeline), self.clock(), None
        except OSError as error:
            wait = RESTARTS.longest
            place.due = self.clock() + wait
            self.log.error(self._kind + "_not_started", error=type(error).__name__, retry_in=wait)  # noqa: TRY400  No traceback.

    def _reap(self, place: _Place[C], child: C, code: int) -> None:
        place.child = None
        end = self.ended(child, code)
        self._on_exit(place.number)
        if end is End.FATAL:
            self._stopping, self._code = True, FATAL_CODE
        if end is not End.DEATH:
            return
        if self.clock() - place.started > LONG_LIFE_SECONDS:
            place.waits.reset()
        wait = place.waits.next()
        hint = "see the lines above; after code -9, check if the machine is short of memory"
        self.log.error(self._kind + "_died", pid=child.pid, code=code, restart_in=wait, hint=hint)
        place.due = self.clock() + wait

    def _stop(self, number: int, _: object) -> None:
        """Begin to drain; a second signal sends the force signal. A closing terminal may send SIGHUP twice."""
        if self._stopping and self._force_signal and number != signal.SIGHUP:
            self._send(self._force_signal)
        self._stopping = True

    def _send(self, number: signal.Signals) -> None:
        for child in self._alive():
            child.send_signal(number)

    def _alive(self) -> list[C]:
        return [place.child for place in self._places if place.child and place.child.poll() is None]
