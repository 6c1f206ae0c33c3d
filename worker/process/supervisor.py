"""Keep worker processes running: replace workers that die or no longer move.

A handler that blocks the event loop stops a hundred other events, and the renewal of their leases. So each worker sends
a pulse from its event loop. The supervisor asks a silent worker for its stack, which shows the blocking code, and ends
the worker before its leases lapse.
"""

import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from subprocess import Popen
from typing import Any, Final, NamedTuple
from uuid import uuid4

from credhook.supervisor import PLACE, Supervisor

#: Silence of a worker until its stack is logged, and until it is ended: part of its lease, and the least in seconds,
#: because processes wait on a busy machine.
_SILENT, _TOO_SILENT = (1 / 3, 3.0), (2 / 3, 6.0)
#: Seconds beyond its grace time that a worker gets to end.
EXTRA_GRACE_SECONDS: Final = 10.0
#: Tells a worker to hand back all events at once.
HAND_BACK: Final = signal.SIGUSR2
#: The byte that a worker sends from its event loop. It does not occur in a stack.
PULSE: Final = b"\0"
#: Bytes to read at once: as many as a pipe holds.
_PIPE_BYTES: Final = 65_536
#: The HTTP client's allocator reads this. With huge pages, 400 connections take 7 MiB more.
_ALLOCATOR: Final = {"MIMALLOC_ALLOW_THP": "0"}


class Pipes(NamedTuple):
    """File descriptors that connect a worker with its supervisor, on the worker's side.

    The worker writes pulses and, on SIGUSR1, its stack to `report`. `lifeline` ends when the supervisor dies in any
    way. The worker holds events under the name `token`.
    """

    report: int
    lifeline: int
    token: str


class SupervisedWorker(Popen[bytes]):
    """A worker process and the supervisor's end of its pipe. Raises OSError if the system cannot start it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], lifeline: int) -> None:
        self.token = uuid4().hex[:12]
        #: When it was last checked, and when its loop last moved. The time before the first pulse counts as moving.
        self.checked, self.heard = -math.inf, math.inf
        #: True if it was asked for its stack since then; True if its silence has ended it.
        self.asked = self.replaced = False
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        self.report = FileIO(ours)
        pipes = map(str, Pipes(theirs, lifeline, self.token))
        try:
            super().__init__(
                [*command, "--supervised", *pipes],
                pass_fds=(theirs, lifeline),
                env={**_ALLOCATOR, **environment},
            )
        except OSError:
            self.report.close()
            raise
        finally:
            os.close(theirs)

    def read_report(self) -> tuple[bool, list[str]]:
        """Return True if there was a pulse, and the stack if it was written: files, lines and names without values."""
        report = self.report.read(_PIPE_BYTES) or b""
        text = report.replace(PULSE, b"").decode(errors="replace")
        return PULSE in report, [line.strip() for line in text.splitlines() if line.strip()]


class WorkerSupervisor(Supervisor[SupervisedWorker]):
    """Replaces workers that die or hang. The next worker hands back the events of the dead one."""

    def __init__(
        self,
        number: int,
        options: Sequence[str],
        environment: Mapping[str, str],
        *,
        lease: float,
        grace: float,
        launch: Callable[[Sequence[str], Mapping[str, str], int], SupervisedWorker] = SupervisedWorker,
        **others: Any,
    ) -> None:
        """`lease` and `grace`: as in the settings; `launch`: starts a worker process; `others`: see `Supervisor`."""
        super().__init__(
            "worker",
            number,
            self._start_worker,
            grace=grace + EXTRA_GRACE_SECONDS,
            force_signal=HAND_BACK,
            **others,
        )
        self._command = [sys.executable, "-P", "-m", "credhook.worker", *options]
        self._environment = environment
        self._silent, self._too_silent = (max(lease * part, least) for part, least in (_SILENT, _TOO_SILENT))
        self._launch = launch
        #: The deaths that the next worker notes in Redis, as `--died` takes them.
        self._died: list[str] = []

    def _start_worker(self, place: int, lifeline: int) -> SupervisedWorker:
        died = [option for death in self._died for option in ("--died", death)]
        child = self._launch([*self._command, *died], {**self._environment, PLACE: str(place)}, lifeline)
        self._died = []
        return child

    def is_alive(self) -> bool:
        """Return True if no worker is silent. While they drain, their silence is not noticed."""
        children = [place.child for place in self._places]
        return super().is_alive() and not any(child and child.asked for child in children)

    def tokens(self) -> list[str]:
        """Return the names under which the workers hold events and announce themselves."""
        return [child.token for place in self._places if (child := place.child)]

    def ended(self, child: SupervisedWorker, code: int) -> None:
        """Note a death, and whether the worker crashed by itself: an operator or a lack of memory may send SIGKILL."""
        child.report.close()
        if code != 0:
            crashed = child.replaced or code != -signal.SIGKILL
            self._died.append(f"{child.token}:{int(crashed)}")

    def check(self, child: SupervisedWorker) -> None:
        """Ask a silent worker for its stack, and end a worker that stays silent."""
        now = self.clock()
        stood_still = now - child.checked > self._silent / 2  # If we stood still ourselves, silence means nothing.
        child.checked = now
        pulsed, stack = child.read_report()
        if pulsed:
            child.heard, child.asked = now, False
        elif stood_still:
            child.heard = max(child.heard, now)
        silent = max(0.0, now - child.heard)
        if silent > self._silent and not child.asked:
            child.asked = True
            child.send_signal(signal.SIGUSR1)
        if stack:
            hint = "a handler blocks the event loop: make it a plain def, which runs in a thread"
            self.log.error("loop_blocked", pid=child.pid, seconds=round(silent, 1), stack=stack, hint=hint)
        if silent > self._too_silent and not child.replaced:
            self.log.error("worker_replaced", pid=child.pid, silent=round(silent, 1))
            child.replaced = True
            child.kill()
