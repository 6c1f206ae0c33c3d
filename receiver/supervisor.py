"""Several receiver processes on one port: the parent holds the socket, its children accept from it.

The socket outlives a child that dies: connections that wait in it are taken by the others. The children share nothing
else; Redis makes them behave as one.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Final

import structlog

from credhook.stopping import TOLD_EARLY, stop_on

log = structlog.get_logger("credhook.receiver")

#: Seconds before a child that died is replaced: at once the first time, later if it keeps dying.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0

#: Seconds that a child must have lived for its death to count as the first again.
_LONG_LIFE: Final = 30.0

#: Deaths of young children, for each place, after which none alive means that none can live.
_TRIES: Final = 3

#: Seconds that children get to drain after SIGTERM; their own limit is below it.
DRAIN: Final = 10.0


class Supervisor:
    """The receiver processes, replaced when they die, until a signal ends them all."""

    def __init__(self, listener: socket.socket, number: int, environment: Mapping[str, str]) -> None:
        """`listener`: the socket that all accept from; `environment`: what they are given."""
        self._environment = environment
        # Its other end closes when we die, however we die: children that read the end of it drain and go.
        self._lifeline, self._held = os.pipe()
        fds = (listener.fileno(), self._lifeline)
        self._command = [
            sys.executable,
            "-P",
            "-m",
            "credhook.receiver",
            "--fd",
            str(fds[0]),
            "--lifeline",
            str(fds[1]),
        ]
        self._fds = fds
        self._listener = listener
        self._number = number
        self._stopping = False
        self._short_lives = 0

    def run(self) -> int:
        """Keep them running.

        Returns:
            0 once all have drained after a signal; 1 if they did not drain, or if none could start.
        """
        stop_on(self._stop)
        self._children = [self._start() for _ in range(self._number)]
        waits = [_FIRST_WAIT] * self._number
        while not self._stopping:
            for index, (child, born) in enumerate(self._children):
                if child.poll() is None or self._stopping:
                    continue
                lived = time.monotonic() - born
                self._short_lives = 0 if lived > _LONG_LIFE else self._short_lives + 1
                if self._short_lives > _TRIES * self._number and not self._any_alive():
                    log.error("receiver_cannot_start", code=child.returncode, hint="see the lines above")
                    return 1
                waits[index] = _FIRST_WAIT if lived > _LONG_LIFE else min(2 * waits[index], _LONGEST_WAIT)
                log.error("receiver_died", pid=child.pid, code=child.returncode, restart_in=waits[index])
                time.sleep(waits[index])
                self._children[index] = self._start()
            time.sleep(0.05)
        return self._drain()

    def _start(self) -> "tuple[subprocess.Popen[bytes], float]":
        child = subprocess.Popen(  # noqa: S603  The program is this one.
            self._command, pass_fds=self._fds, env=self._environment
        )
        return child, time.monotonic()

    def _any_alive(self) -> bool:
        return any(child.poll() is None for child, _ in self._children)

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _drain(self) -> int:
        """Ask all, wait, insist. The socket is closed first, so that nobody new is let in."""
        self._listener.close()
        for child, _ in self._children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + DRAIN
        codes = []
        for child, _ in self._children:
            try:
                codes.append(child.wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                child.kill()
                codes.append(child.wait())
        return 0 if all(code == 0 or code in TOLD_EARLY for code in codes) else 1
