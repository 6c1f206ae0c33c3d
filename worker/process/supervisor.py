"""The process that keeps worker processes going: it replaces what dies, and what no longer moves.

A handler that blocks the event loop keeps a hundred other events waiting, and their leases from being renewed. From
inside nothing can be done about that, so each worker sends a pulse from its loop, and the supervisor listens: it asks a
silent one for its stack, which tells whose code it is, and ends it before its leases do.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import structlog

from credhook.stopping import TOLD_EARLY, stop_on

log = structlog.get_logger("credhook.worker")

#: Seconds between two looks.
_LOOK: Final = 0.1
#: Seconds before a worker that died is replaced: at once the first time, later if it keeps dying.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 4.0
#: Seconds that a worker must have lived for its death to count as the first again.
_LONG_LIFE: Final = 30.0
#: Exit code of a worker whose settings or handlers are wrong: another one would fare no better.
_WRONG_SETTINGS: Final = 2
#: Parts of its lease that a worker may be silent before its stack is logged, and before it is ended; and the least
#: seconds of both, since a busy machine makes processes wait.
_SILENT, _TOO_SILENT = (1 / 3, 3.0), (2 / 3, 6.0)
#: Seconds beyond its grace time that a worker gets to end.
_PATIENCE: Final = 10.0
#: Tells a worker to hand back at once what it has under way.
HAND_BACK: Final = signal.SIGUSR2
#: How a worker ends that was told to before it could listen.
_TOLD_EARLY: Final = TOLD_EARLY | {-HAND_BACK}
#: Bytes that are read of a stack.
_LONGEST_STACK: Final = 65_536


@dataclass(frozen=True, slots=True)
class Pipes:
    """What ties a worker to its supervisor: file descriptors, on the worker's side.

    Attributes:
        pulse: a byte goes into it from the event loop, twice a second.
        stack: the stack is written into it on SIGUSR1.
        lifeline: it ends when the supervisor does, however it does.
        token: the worker's, by which the ledger knows what it holds.
    """

    pulse: int
    stack: int
    lifeline: int
    token: str

    def __str__(self) -> str:
        return f"{self.pulse},{self.stack},{self.lifeline},{self.token}"

    @classmethod
    def parse(cls, text: str) -> "Pipes":
        """What `str` made of it."""
        pulse, stack, lifeline, token = text.split(",")
        return cls(int(pulse), int(stack), int(lifeline), token)


class _Child:
    """One worker process and our ends of its pipes."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], lifeline: int, died: Sequence[str]
    ) -> None:
        self.token = uuid4().hex[:12]
        #: Whether we have ended it for its silence.
        self.replaced = False
        self._pulse, pulse = os.pipe()
        self._stack, stack = os.pipe()
        pipes = Pipes(pulse, stack, lifeline, self.token)
        options = [option for one in died for option in ("--died", one)]
        try:
            self.process = subprocess.Popen(  # noqa: S603  The program is this one.
                [*command, "--supervised", str(pipes), *options], pass_fds=(pulse, stack, lifeline), env=environment
            )
        except OSError:
            self.close()
            raise
        finally:
            os.close(pulse)
            os.close(stack)
        for end in (self._pulse, self._stack):
            os.set_blocking(end, False)
        self.born = self.heard = time.monotonic()
        self.beats = False
        self.asked = False

    def listen(self) -> None:
        """Take in the pulse. Silence counts only once there has been one: starting takes its time."""
        if _read(self._pulse):
            self.heard, self.beats, self.asked = time.monotonic(), True, False

    def ask_for_stack(self) -> None:
        self.asked = True
        self.process.send_signal(signal.SIGUSR1)

    def stack(self) -> list[str]:
        """Where its threads are, the innermost call first; files, lines and names, no values."""
        return [line.strip() for line in _read(self._stack).decode(errors="replace").splitlines() if line.strip()]

    def close(self) -> None:
        os.close(self._pulse)
        os.close(self._stack)


class Supervisor:
    """Runs so many worker processes, until a signal ends them all, or all have ended by themselves."""

    def __init__(
        self,
        number: int,
        options: Sequence[str],
        *,
        lease: float,
        grace: float,
        environment: Mapping[str, str] | None = None,
        buried: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            number: of processes.
            options: of the command line, for each of them.
            lease: seconds that their claims last unless renewed.
            grace: seconds that they take to finish what is under way.
            environment: what they are given; by default ours.
            buried: called with the id of each process that has ended.
        """
        self._buried = buried
        self._command = [sys.executable, "-P", "-m", "credhook.worker", *options]
        self._environment = dict(os.environ) if environment is None else environment
        self._silent = max(lease * _SILENT[0], _SILENT[1])
        self._too_silent = max(lease * _TOO_SILENT[0], _TOO_SILENT[1])
        self._grace = grace
        self._lifeline, self._held = os.pipe()
        self._stopping = False
        self._waits = [_FIRST_WAIT] * number
        self._children: list[_Child | None] = [None] * number
        self._due = [0.0] * number
        #: For each place the deaths in it that its next worker is to note, as `--died` takes them.
        self._died: list[list[str]] = [[] for _ in range(number)]

    def run(self) -> int:
        """Keep them running; the exit code.

        Returns:
            0 once all have ended in order; 2 if their settings are wrong; 1 if one had to be ended by force.
        """
        stop_on(self._stop)
        self._children = [self._start(place) for place in range(len(self._children))]
        looked = time.monotonic()
        while not self._stopping:
            now = time.monotonic()
            stood_still = now - looked > self._silent / 2  # We did; the silence of others means nothing then.
            looked = now
            for place, child in enumerate(self._children):
                if child is None:
                    if self._due[place] and now >= self._due[place]:
                        self._children[place] = self._start(place)
                    continue
                code = child.process.poll()
                if code is None:
                    self._look_after(child, stood_still=stood_still)
                elif code == _WRONG_SETTINGS:
                    self._stopping = True
                else:
                    self._reap(place, child, code)
            if not any(self._children) and not any(self._due):
                return 0
            time.sleep(_LOOK)
        return self._drain()

    def _start(self, place: int) -> _Child | None:
        """Another worker; None if the system has no room for one, which is asked again."""
        try:
            child = _Child(self._command, self._environment, self._lifeline, self._died[place])
        except OSError as error:
            self._due[place] = time.monotonic() + _LONGEST_WAIT
            log.error("worker_not_started", error=type(error).__name__, retry_in=_LONGEST_WAIT)  # noqa: TRY400
            return None
        self._died[place] = []
        return child

    def _reap(self, place: int, child: _Child, code: int) -> None:
        """Note that a worker has ended, and when another takes its place: never, if it ended in order."""
        child.close()
        self._buried(child.process.pid)
        self._children[place] = None
        if code == 0:
            self._due[place] = 0.0
            return
        # Who kills from outside, be it an operator or a machine short of memory, does not say what for.
        own_fault = child.replaced or code != -signal.SIGKILL
        self._died[place].append(f"{child.token}:{int(own_fault)}")
        lived = time.monotonic() - child.born
        self._waits[place] = _FIRST_WAIT if lived > _LONG_LIFE else min(2 * self._waits[place], _LONGEST_WAIT)
        self._due[place] = time.monotonic() + self._waits[place]
        hint = "a handler has ended it, or the system has; an event that does so again is kept as dead"
        log.error("worker_died", pid=child.process.pid, code=code, restart_in=self._waits[place], hint=hint)

    def _look_after(self, child: _Child, *, stood_still: bool) -> None:
        child.listen()
        if stood_still:
            child.heard = time.monotonic()
        silent = time.monotonic() - child.heard if child.beats else 0.0
        if silent > self._silent and not child.asked:
            child.ask_for_stack()
        stack = child.stack()
        if stack:
            log.error(
                "loop_blocked",
                pid=child.process.pid,
                seconds=round(silent, 1),
                stack=stack,
                hint="a handler blocks the event loop: make it a plain def, which runs in a thread",
            )
        if silent > self._too_silent:
            log.error("worker_replaced", pid=child.process.pid, silent=round(silent, 1))
            child.replaced = True
            child.process.kill()
            child.process.wait()

    def _stop(self, number: int, _: object) -> None:
        """Drain; asked again, have everything handed back at once."""
        if self._stopping and number != signal.SIGHUP:  # The end of a terminal may come twice, and insists on nothing.
            self._tell(HAND_BACK)
        self._stopping = True

    def _tell(self, number: signal.Signals) -> None:
        for child in self._children:
            if child is not None and child.process.poll() is None:
                child.process.send_signal(number)

    def _drain(self) -> int:
        """Ask all, wait, insist."""
        children = [child for child in self._children if child is not None]
        self._tell(signal.SIGTERM)
        deadline = time.monotonic() + self._grace + _PATIENCE
        codes = []
        for child in children:
            try:
                codes.append(child.process.wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                log.error("worker_killed", pid=child.process.pid, reason="it did not end")  # noqa: TRY400
                child.process.kill()
                codes.append(child.process.wait())
        if _WRONG_SETTINGS in codes:
            return _WRONG_SETTINGS
        return 0 if all(code == 0 or code in _TOLD_EARLY for code in codes) else 1


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _LONGEST_STACK)
    except BlockingIOError:
        return b""
