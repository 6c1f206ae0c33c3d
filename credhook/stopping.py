"""The signals that end a process of ours in order."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

#: SIGTERM from a supervisor, Ctrl-C, and SIGHUP from a terminal or a session that is closed.
_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: How a child ends that was told to stop before it could listen.
TOLD_EARLY: Final = frozenset(-one for one in _STOPS)


def stops() -> tuple[signal.Signals, ...]:
    """Those that are to be heard. `nohup` stays obeyed: where it has a SIGHUP ignored, that stays ignored."""
    return tuple(one for one in _STOPS if one != signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN)


def stop_on(handler: Callable[[int, FrameType | None], object]) -> None:
    """Call the handler at each of them."""
    for one in stops():
        signal.signal(one, handler)
