"""Keep worker processes running: replace workers that die or whose event loop is blocked, and put back their events.

A handler that blocks the event loop stops a hundred other events, and the renewal of their leases. So each worker arms
faulthandler's timer from its event loop, again and again. If the loop does not arm it in time, the timer writes all
stacks and ends the process, even if the interpreter's lock is never released. The supervisor logs the blocking code.
"""

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from itertools import count, takewhile
from subprocess import DEVNULL, Popen
from typing import Any, Final, NamedTuple
from uuid import uuid4

from credhook.backoff import Backoff, Waits
from credhook.store import Death
from credhook.supervisor import FATAL_CODE, PLACE, End, Supervisor

#: Seconds beyond its grace time that a worker gets to end.
EXTRA_GRACE_SECONDS: Final = 10.0
#: If two checks are more seconds apart, all processes may have stood still. A blocked loop then means nothing.
_STALL_SECONDS: Final = 2.0
#: Waits between two tries to put back the events of a dead worker.
_RETRIES: Final = Backoff(first=0.2, longest=5.0)
#: Seconds that a supervisor waits at its end until Redis has noted all deaths.
_NOTE_SECONDS: Final = 5.0
#: Tells a worker to hand back all events at once.
HAND_BACK: Final = signal.SIGUSR2
#: Lines that a worker reports: its settings and handlers are right; it has stopped in order; poison candidates wait.
LOADED, STOPPED, CANDIDATES = b"loaded\n", b"stopped\n", b"candidates\n"
_SIGNS: Final = LOADED, STOPPED, CANDIDATES
#: Bytes to read at once: as many as a pipe holds.
_PIPE_BYTES: Final = 65_536
#: Bytes of a report that are kept: more than the stacks of all threads take.
_REPORT_BYTES: Final = 262_144
#: Stacks of threads that one log line shows, and calls of each stack.
_STACKS, _CALLS = 3, 20


class Supervision(NamedTuple):
    """What a worker has from its supervisor: two file descriptors, and its name in the whole fleet.

    The worker writes lines to `report`, and its stacks if its loop is blocked. `lifeline` ends when the supervisor dies
    in any way.
    """

    report: int
    lifeline: int
    name: str


class SupervisedWorker(Popen[bytes]):
    """A worker process and the supervisor's end of its pipe. Raises OSError if the system cannot start it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], lifeline: int, name: str) -> None:
        self.name = name
        #: The end of what the worker has reported.
        self.reported = b""
        #: The lines of `_SIGNS` that it has reported.
        self.signs = set[bytes]()
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        self._report = FileIO(ours)
        try:
            super().__init__(
                [*command, "--supervised", *map(str, Supervision(theirs, lifeline, name))],
                pass_fds=(theirs, lifeline),
                env=environment,
                stdin=DEVNULL,
                process_group=0,  # What its handlers start is in it as well, and ends with the worker.
            )
        except OSError:
            self._report.close()
            raise
        finally:
            os.close(theirs)

    def read_report(self) -> None:
        """Read what the worker has reported since the last call, a pipe's worth at most: others are checked as well."""
        self.reported = (self.reported + (self._report.read(_PIPE_BYTES) or b""))[-_REPORT_BYTES:]
        self.signs.update(sign for sign in _SIGNS if sign in self.reported)

    def close(self) -> None:
        """Read the last report of a worker that has ended, and end the processes that its handlers have started."""
        self.read_report()
        self._report.close()
        with suppress(ProcessLookupError, PermissionError):  # A child may run as another user.
            os.killpg(self.pid, signal.SIGKILL)


class WorkerSupervisor(Supervisor[SupervisedWorker]):
    """Replaces workers that die or are blocked, and has their events put back."""

    def __init__(
        self,
        number: int,
        options: Sequence[str],
        environment: Mapping[str, str],
        *,
        grace: float,
        reclaim: Callable[[str, Death], bool],
        launch: Callable[[Sequence[str], Mapping[str, str], int, str], SupervisedWorker] = SupervisedWorker,
        **others: Any,
    ) -> None:
        """Prepare to run `number` workers with these options.

        `grace`: as in the settings; `reclaim`: puts back the events of a worker with this name, see
        credhook/worker/queue/leases.py; `launch`: starts a worker process; `others`: see `Supervisor`.
        """
        super().__init__(
            "worker",
            number,
            self._start_worker,
            grace=grace + EXTRA_GRACE_SECONDS,
            force_signal=HAND_BACK,
            **others,
        )
        self._command = [sys.executable, "-P", "-m", "credhook.worker", *options]
        # A process of its own works on poison candidates, while there are any. Its death blames no other event.
        self._number = number
        self._isolation = self.add_place()
        self._environment = environment
        self._reclaim, self._launch = reclaim, launch
        #: True once a worker has loaded the handlers.
        self._has_loaded = False
        self._names = process_names()
        self._reclaiming: list[threading.Thread] = []
        #: When a worker was last checked, and until when a blocked loop blames no event.
        self._looked, self._excused_until = self.clock(), self.clock()

    def run(self) -> int:
        """Run as `Supervisor` does, and wait at the end until Redis has noted the last deaths."""
        code = super().run()
        deadline = time.monotonic() + _NOTE_SECONDS
        for thread in self._reclaiming:
            thread.join(max(0.0, deadline - time.monotonic()))
        return code

    def names(self) -> list[str]:
        """Return the name of the worker of each place, "" where none runs now. Without the isolated worker."""
        return [child.name if child else "" for child in self.expected(self._number)]

    def check(self, child: SupervisedWorker) -> None:
        """Read what a running worker reports."""
        self._look()
        child.read_report()
        self._has_loaded = self._has_loaded or LOADED in child.signs
        if CANDIDATES in child.signs:
            child.reported = child.reported.replace(CANDIDATES, b"")
            child.signs.discard(CANDIDATES)
            self.start_place(self._isolation)

    def ended(self, child: SupervisedWorker, code: int) -> End:
        """Judge the end of a worker by its code and its report, and have its events put back if it died.

        A handler can end its process with any code. So 0 counts only with the worker's own report that it has stopped,
        and the fatal code only before the worker reports that it has loaded the handlers.
        """
        self._look()
        child.close()
        if code == 0 and STOPPED in child.signs:
            return End.IN_ORDER
        if LOADED not in child.signs:  # It has not held any event.
            # Once the handlers could be loaded, a deploy may have broken them for a moment: they are tried again.
            end = super().ended(child, code)
            return End.DEATH if end is End.FATAL and self._has_loaded else end
        blocked = self._log_blocked(child)
        excused = blocked and self.clock() < self._excused_until
        # An operator or a lack of memory may send SIGKILL.
        self._put_back(child.name, "ended" if excused or code == -signal.SIGKILL else "own")
        return End.DEATH if code == FATAL_CODE else super().ended(child, code)

    def _start_worker(self, place: int, lifeline: int) -> SupervisedWorker:
        self._reclaiming = [thread for thread in self._reclaiming if thread.is_alive()]
        command = [*self._command, *(["--isolated"] if place == self._isolation else [])]
        return self._launch(command, {**self._environment, PLACE: str(place)}, lifeline, next(self._names))

    def _look(self) -> None:
        """Note if all processes have stood still: then the timers of all loops run out at once."""
        now = self.clock()
        if now - self._looked > _STALL_SECONDS:
            self._excused_until = now + _STALL_SECONDS
        self._looked = now

    def _log_blocked(self, child: SupervisedWorker) -> bool:
        """Return True if the loop of the worker was blocked, and log where."""
        if (blocked := read_stacks(child.reported.decode(errors="replace"))) is None:
            return False
        hint = "a handler blocks the event loop: make it a plain def, which runs in a thread"
        if blocked.by_threads:
            hint = "a thread keeps the interpreter to itself, as a slow regular expression does: use a subprocess"
        self.log.error("loop_blocked", pid=child.pid, after=blocked.after, stack=blocked.stack, hint=hint)
        return True

    def _put_back(self, name: str, how: Death) -> None:
        """Put back the events of a dead worker from a thread: Redis may be away, and the supervisor must go on."""

        def repeat() -> None:
            waits = Waits(_RETRIES)
            while not self._reclaim(name, how):
                time.sleep(waits.next())

        thread = threading.Thread(target=repeat, daemon=True, name="reclaim")
        self._reclaiming.append(thread)
        thread.start()


def process_names() -> Iterator[str]:
    """Yield names for the worker processes of this supervisor: `host.supervisor.number`, never twice in the fleet."""
    family = f"{socket.gethostname()}.{uuid4().hex[:8]}"
    return (f"{family}.{number}" for number in count(1))


class Blocked(NamedTuple):
    """Where the event loop of a worker was blocked.

    Attributes:
        after: hours, minutes and seconds that the loop had, as faulthandler writes them.
        stack: calls, the innermost first: files, lines and names without values.
        by_threads: True if the loop itself was idle, so that a thread of a handler must have held the interpreter.
    """

    after: str
    stack: list[str]
    by_threads: bool


def read_stacks(report: str) -> Blocked | None:
    """Return where the loop was blocked, from what faulthandler wrote; None if it wrote nothing."""
    timeout = re.search(r"^Timeout \((.+)\)!$", report, re.MULTILINE)
    if timeout is None:
        return None
    stacks = [list(map(str.strip, part.splitlines()[1:])) for part in report[timeout.end() :].split("Thread 0x")[1:]]
    stacks = [[call for call in stack if call.startswith("File ")] for stack in stacks]
    main = stacks[-1] if stacks else []  # faulthandler begins with the youngest thread.
    is_idle = main and ("process/concurrent.py" in main[0] or any(call.endswith("in _call_in_thread") for call in main))
    threads = [_of_handler(stack) for stack in stacks[:-1] if is_idle and any(map(_runs_handlers, stack))]
    if not any(threads):
        return Blocked(timeout[1], _of_handler(main), by_threads=False)
    return Blocked(timeout[1], [call for stack in threads[:_STACKS] for call in stack], by_threads=True)


def _of_handler(stack: Sequence[str]) -> list[str]:
    """Leave out our own calls, outside of the handler's."""
    return list(takewhile(lambda call: not _runs_handlers(call), stack))[:_CALLS]


def _runs_handlers(call: str) -> bool:
    return "worker/attempt/running.py" in call
