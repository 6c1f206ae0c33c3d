"""Name the handlers that block the event loop for a second or longer. A thread beside the loop looks for them.

The supervisor ends a worker whose loop stands still for much longer. A handler that blocks for a second at a time is
never ended, but it delays all other events of its process.
"""

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Final

import structlog

from credhook.logs.places import is_authors, place
from credhook.worker.handlers.registry import Handler

log = structlog.get_logger("credhook.worker")

#: Seconds between two looks at the loop.
LOOK_SECONDS: Final = 0.2
#: Seconds that a handler may run without an await.
BLOCKED_SECONDS: Final = 1.0

_HINT: Final = "all other events wait for it: await slow calls, or make it a plain def, which runs in a thread"


def _stack_of_main_thread() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001  Its only name.


class LoopWatch:
    """Logs each handler that blocks the loop, once."""

    def __init__(
        self,
        handlers: Iterable[Handler],
        *,
        clock: Callable[[], float] = time.monotonic,
        stack: Callable[[], FrameType | None] = _stack_of_main_thread,
    ) -> None:
        """`clock`: monotonic seconds; `stack`: returns the innermost frame of the loop's thread."""
        self._clock = clock
        self._stack = stack
        functions = {handler.name: inspect.unwrap(handler.function) for handler in handlers if handler.is_async}
        self._names = {getattr(function, "__code__", None): name for name, function in functions.items()}
        self._moved = False
        #: The call of a handler on the stack, and since when it has been there.
        self._call: tuple[str, int] | None = None
        self._since = 0.0
        self._reported: set[str] = set()

    def beat(self) -> None:
        """Note that the loop moves. The loop calls this again and again."""
        self._moved = True

    def look(self) -> None:
        """Log the handler that has been running since earlier looks, if the loop has not moved for too long."""
        now, (call, at) = self._clock(), self._running_handler()
        if call is None or call != self._call or self._moved:
            self._call, self._since, self._moved = call, now, False
        elif now - self._since >= BLOCKED_SECONDS and call[0] not in self._reported:
            self._reported.add(call[0])
            log.warning("handler_blocks_loop", handler=call[0], at=at, seconds=round(now - self._since, 1), hint=_HINT)

    def _running_handler(self) -> tuple[tuple[str, int] | None, str]:
        """Return the handler's name and the id of its frame, and the innermost line of its author's code."""
        frame, at = self._stack(), ""
        while frame is not None:
            code = frame.f_code
            if not at and is_authors(code.co_filename):
                at = f"{place(code.co_filename, frame.f_lineno)} {code.co_name}"
            if (name := self._names.get(code)) is not None:
                return (name, id(frame)), at
            frame = frame.f_back
        return None, ""
