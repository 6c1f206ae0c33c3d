"""Who keeps the event loop from moving for a second or longer: seen from a thread beside it.

The supervisor sees a loop that stands still for longer, and ends it; by then a hundred events have waited. A handler
that blocks for a second at a time is never ended, and slows its process down all the same.
"""

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Final

import structlog

from credhook.logs.places import is_authors, place
from credhook.worker.handlers.handler import Handler

log = structlog.get_logger("credhook.worker")

#: Seconds between two looks at the loop.
LOOK: Final = 0.2
#: Seconds that a handler may run without an await.
LONG: Final = 1.0

_HINT: Final = "all other events wait for it: await what takes long, or make it a plain def, which runs in a thread"


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A handler on the loop, which of its calls, as far as can be told, and the author's line that it is in."""

    handler: str
    call: int
    at: str


def _stack_of_main_thread() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001  Its only name.


class LoopWatch:
    """Names each handler that has blocked the loop, once."""

    def __init__(
        self,
        handlers: Iterable[Handler],
        *,
        clock: Callable[[], float] = time.monotonic,
        stack: Callable[[], FrameType | None] = _stack_of_main_thread,
    ) -> None:
        """`stack`: the innermost frame of the thread that the loop runs in."""
        self._clock = clock
        self._stack = stack
        functions = {one.name: inspect.unwrap(one.function) for one in handlers if one.is_async}
        self._names = {getattr(function, "__code__", None): name for name, function in functions.items()}
        self._moved = False
        self._seen: _Sighting | None = None
        self._since = self._until = 0.0
        self._said: set[str] = set()

    def beat(self) -> None:
        """The loop moves; called from it again and again."""
        self._moved = True

    def look(self) -> None:
        """See who runs, and say of whoever has run for long that it did; to be called every `LOOK` seconds."""
        now, seen, moved = self._clock(), self._sighted(), self._moved
        self._moved = False
        before = self._seen
        if before and seen and not moved and (seen.handler, seen.call) == (before.handler, before.call):
            self._seen, self._until = seen, now
            return
        if before and self._until - self._since >= LONG:
            self._say(before, self._until - self._since)
        self._seen, self._since, self._until = seen, now, now

    def _sighted(self) -> _Sighting | None:
        """The handler on the loop's stack, and the innermost line of its author's."""
        frame, at = self._stack(), ""
        while frame is not None:
            code = frame.f_code
            if not at and is_authors(code.co_filename):
                at = f"{place(code.co_filename, frame.f_lineno)} {code.co_name}"
            if (name := self._names.get(code)) is not None:
                return _Sighting(name, id(frame), at)
            frame = frame.f_back
        return None

    def _say(self, seen: _Sighting, seconds: float) -> None:
        if seen.handler not in self._said:
            self._said.add(seen.handler)
            log.warning("handler_blocks_loop", handler=seen.handler, at=seen.at, seconds=round(seconds, 1), hint=_HINT)
