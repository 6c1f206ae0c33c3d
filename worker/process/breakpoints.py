"""`breakpoint()` in a worker of `credhook dev`: pdb on the terminal that the session reads keys from.

The terminal's mode says who may read: the session reads single keys, pdb reads lines.
"""

import os
import pdb  # noqa: T100  It is what this module is about.
import select
import sys
import termios
import threading
from collections.abc import Callable
from typing import Any, Final

import structlog

from credhook.worker.attempt.running import untimed
from credhook.worker.process.concurrent import PULSE_SECONDS

log = structlog.get_logger("credhook.worker")

_LINES: Final = termios.ICANON | termios.ECHO
_POLL_SECONDS: Final = 0.2


def install(pulse: Callable[[], object]) -> None:
    """Have `breakpoint()` start a debugger. `pulse` tells the supervisor that the process is well."""

    def hook(*_: object, **__: object) -> None:
        try:
            terminal = os.open(os.ttyname(0), os.O_RDWR | os.O_NOCTTY)
        except OSError:
            log.warning("breakpoint_skipped", hint="Run credhook dev in a terminal")
            return
        untimed.set()
        Debugger(terminal, pulse).set_trace(sys._getframe(1))  # noqa: SLF001  As pdb itself does.

    sys.breakpointhook = hook


class Debugger(pdb.Pdb):
    """pdb on a terminal, which it reads and writes as its own file."""

    def __init__(self, terminal: int, pulse: Callable[[], object]) -> None:
        file: Any = self
        super().__init__(stdin=file, stdout=file, nosigint=True)
        self._terminal, self._pulse = terminal, pulse

    def readline(self) -> str:
        """Return the next line; "" if the terminal is closed, or the session has taken it back."""
        try:
            while termios.tcgetattr(self._terminal)[3] & termios.ICANON:
                if select.select([self._terminal], [], [], _POLL_SECONDS)[0]:
                    return os.read(self._terminal, 4096).decode(errors="replace")
        except (OSError, termios.error):
            pass
        return ""

    def write(self, text: str) -> None:
        """Write text."""
        os.write(self._terminal, text.encode(errors="replace"))

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def interaction(self, *arguments: Any) -> None:
        """Ask for commands. An `async def` blocks the event loop meanwhile, so a thread sends the pulse."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(PULSE_SECONDS):
                self._pulse()

        threading.Thread(target=beat, daemon=True).start()
        self._read_lines(on=True)
        try:
            super().interaction(*arguments)
        finally:
            ended.set()

    def set_continue(self) -> None:
        """Go on, and give the terminal back."""
        super().set_continue()
        self._read_lines(on=False)

    def set_quit(self) -> None:
        """Fail the handler, and give the terminal back."""
        super().set_quit()
        self._read_lines(on=False)

    def _read_lines(self, *, on: bool) -> None:
        mode = termios.tcgetattr(self._terminal)
        mode[3] = mode[3] | _LINES if on else mode[3] & ~_LINES
        termios.tcsetattr(self._terminal, termios.TCSANOW, mode)
