"""The process that keeps worker processes going: it replaces what dies, and what no longer moves.

A handler that blocks the event loop keeps a hundred other events waiting, and their leases from being renewed. From
inside nothing can be done about that, so each worker sends a pulse from its loop, and the supervisor listens: it asks a
silent one for its stack, which tells whose code it is, and ends it before its leases do.
"""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from subprocess import Popen
from typing import Final, NamedTuple
from uuid import uuid4

from credhook.backoff import Backoff
from credhook.metrics.places import environment_of
from credhook.supervisor import Supervisor

#: Parts of its lease that a worker may be silent before its stack is logged, and before it is ended; and the least
#: seconds of both, since a busy machine makes processes wait.
_SILENT, _TOO_SILENT = (1 / 3, 3.0), (2 / 3, 6.0)
#: Seconds beyond its grace time that a worker gets to end.
_PATIENCE: Final = 10.0
#: Tells a worker to hand back at once what it has under way.
HAND_BACK: Final = signal.SIGUSR2
#: Bytes that are read at once: as many as a pipe holds.
_WHOLE_PIPE: Final = 65_536


class Pipes(NamedTuple):
    """What ties a worker to its supervisor: file descriptors, on the worker's side.

    Into `pulse` a byte goes from the event loop, twice a second, and into `stack` the stack on SIGUSR1; `lifeline` ends
    when the supervisor does, however it does. By the `token` the ledger knows what the worker holds.
    """

    pulse: int
    stack: int
    lifeline: int
    token: str

    def __str__(self) -> str:
        return ",".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> "Pipes":
        """What `str` made of it."""
        pulse, stack, lifeline, token = text.split(",")
        return cls(int(pulse), int(stack), int(lifeline), token)


class WorkerProcess(Popen[bytes]):
    """One worker process and our ends of its pipes; OSError if the system has no room for it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], lifeline: int) -> None:
        self.token = uuid4().hex[:12]
        #: When it was last looked after, and when it moved, as far as we know: starting takes its time, so not before
        #: its first pulse.
        self.looked, self.heard = -math.inf, math.inf
        #: Whether it has been asked for its stack since; whether we have ended it for its silence.
        self.asked = self.replaced = False
        (self._pulse, pulse), (self._stack, stack) = _pipe(), _pipe()
        pipes = Pipes(pulse, stack, lifeline, self.token)
        try:
            super().__init__([*command, "--supervised", str(pipes)], pass_fds=(pulse, stack, lifeline), env=environment)
        except OSError:
            self.close()
            raise
        finally:
            os.close(pulse)
            os.close(stack)

    def beats(self) -> bool:
        """Whether there has been a pulse since it was last asked."""
        return bool(self._pulse.read(_WHOLE_PIPE))

    def stack(self) -> list[str]:
        """Where its threads are, the innermost call first; files, lines and names, no values."""
        text = (self._stack.read(_WHOLE_PIPE) or b"").decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def close(self) -> None:
        """Close our ends of the pipes."""
        self._pulse.close()
        self._stack.close()


def _pipe() -> tuple[FileIO, int]:
    """Our end, which is read without waiting, and the worker's."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    return FileIO(ours), theirs


class WorkerSupervisor(Supervisor[WorkerProcess]):
    """The worker processes, replaced when they die or hang; what a dead one held is handed back by the next."""

    kind = "worker"
    hint = "a handler has ended it, or the system has; an event that does so again is kept as dead"
    restarts = Backoff(first=0.1, longest=4.0)
    may_finish = True
    hopeless = 2  # Its settings or handlers are wrong.
    insistence = HAND_BACK

    def __init__(
        self,
        number: int,
        options: Sequence[str],
        environment: Mapping[str, str],
        *,
        lease: float,
        grace: float,
        buried: Callable[[int], None] = lambda _: None,
        launch: Callable[[Sequence[str], Mapping[str, str], int], WorkerProcess] = WorkerProcess,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Their claims last for `lease` seconds; `buried` is called with the place of each process that has ended."""
        super().__init__(number, clock=clock, sleep=sleep)
        self.grace = grace + _PATIENCE
        self._command = [sys.executable, "-P", "-m", "credhook.worker", *options]
        self._environment = environment
        self._silent, self._too_silent = (max(lease * part, least) for part, least in (_SILENT, _TOO_SILENT))
        self._buried = buried
        self._launch = launch
        #: The deaths that the next worker is to note, as `--died` takes them.
        self._died: list[str] = []

    def start(self, place: int) -> WorkerProcess:
        """Another worker, which is told of the deaths before it."""
        died = [option for one in self._died for option in ("--died", one)]
        child = self._launch([*self._command, *died], environment_of(self._environment, place), self.lifeline)
        self._died = []
        return child

    def ended(self, child: WorkerProcess, code: int, place: int) -> None:
        """Note a death, and whose fault it was."""
        child.close()
        self._buried(place)
        if code != 0:
            # Who kills from outside, be it an operator or a machine short of memory, does not say what for.
            own_fault = child.replaced or code != -signal.SIGKILL
            self._died.append(f"{child.token}:{int(own_fault)}")

    def look_after(self, child: WorkerProcess) -> None:
        """Ask one that is silent where it is, and end one that has been silent for too long."""
        silent = self._silence(child)
        if silent > self._silent and not child.asked:
            child.asked = True
            child.send_signal(signal.SIGUSR1)
        if stack := child.stack():
            hint = "a handler blocks the event loop: make it a plain def, which runs in a thread"
            self.log.error("loop_blocked", pid=child.pid, seconds=round(silent, 1), stack=stack, hint=hint)
        if silent > self._too_silent and not child.replaced:
            self.log.error("worker_replaced", pid=child.pid, silent=round(silent, 1))
            child.replaced = True
            child.kill()

    def _silence(self, child: WorkerProcess) -> float:
        """Seconds for which its loop has not moved; 0 until it has for the first time."""
        now = self.clock()
        stood_still = now - child.looked > self._silent / 2  # We did; the silence of others means nothing then.
        child.looked = now
        if child.beats():
            child.heard, child.asked = now, False
        elif stood_still:
            child.heard = max(child.heard, now)
        return max(0.0, now - child.heard)
