"""The keys of a terminal, and what each makes happen."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

REPLAY: Final = "r"
QUIT: Final = "q"
HELP: Final = "?"


@dataclass(frozen=True)
class Trigger:
    """What a key makes happen on the platform, and whether what a holder presents with it is valid."""

    event_type: str
    valid: bool = True

    @property
    def body(self) -> dict[str, Any]:
        """What `POST /sandbox/events` takes."""
        return {"eventType": self.event_type} | ({} if self.valid else {"isValid": False})

    @property
    def command(self) -> str:
        """The same for `credhook trigger`."""
        return self.event_type.removeprefix("openid4vc.") + ("" if self.valid else " --no-is-valid")


TRIGGERS: Final[Mapping[str, Trigger]] = {
    "i": Trigger("openid4vc.issuance.completed"),
    "o": Trigger("openid4vc.issuance.offered"),
    "f": Trigger("openid4vc.issuance.failed"),
    "d": Trigger("openid4vc.verification.data"),
    "x": Trigger("openid4vc.verification.data", valid=False),
    "v": Trigger("openid4vc.verification.verified"),
    "n": Trigger("openid4vc.verification.failed"),
}


class Keyboard:
    """Keys as they are pressed, where there is a terminal."""

    def __init__(self, *, listens: bool) -> None:
        self.listens = listens

    def pressed(self, within: float) -> str:
        """The next key; empty if there is none within so many seconds. A terminal that is gone is `QUIT`."""
        if not self.listens:
            time.sleep(within)
            return ""
        if not select.select([sys.stdin], [], [], within)[0]:
            return ""
        try:
            return os.read(sys.stdin.fileno(), 1).decode(errors="replace") or QUIT
        except OSError:
            return QUIT


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """Have keys read one by one and not shown, if a terminal is ours to read."""
    if not (sys.stdin and sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()):
        yield Keyboard(listens=False)
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield Keyboard(listens=True)
    finally:
        with suppress(termios.error):  # The terminal is gone.
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
