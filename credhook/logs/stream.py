"""Where lines go: one stream for whoever logs, a line at a time, or in groups where many lines come."""

import logging
import os
import sys
from contextlib import suppress
from typing import Any, Final

import structlog

from credhook.logs.places import place

#: Lines that wait to be written at most; who logs more than that writes them itself, and waits for whoever reads.
_MOST_WAITING: Final = 5_000


class LineHandler(logging.StreamHandler[Any]):
    """Writes lines, and says of one that cannot be made no more than which it was.

    Python would print the message and its arguments, unformatted, with a traceback.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._failing = False
        self._gathers = False
        self._waiting: list[str] = []

    def gather(self) -> None:
        """Let lines that are no warning wait from now on, until `flush`, or until a line comes that is not to wait.

        Written one by one, each takes as long as it takes to make it, measured.
        """
        self._gathers = True
        os.register_at_fork(after_in_child=self._begin_as_fork)

    def write(self, line: str, *, waits: bool) -> None:
        """Write a line that is ready, or have it written with the next; nothing if it cannot be written."""
        self._waiting.append(line)
        if not (waits and self._gathers) or len(self._waiting) > _MOST_WAITING:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        self.acquire()
        try:
            if self._waiting:
                lines = self._waiting[:]
                del self._waiting[: len(lines)]  # Others add to it meanwhile, who take no lock for that.
                with suppress(Exception):  # As logging's own: no line is worth an error in whoever writes it.
                    self.stream.write("\n".join(lines) + "\n")
            with suppress(Exception):
                super().flush()
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        """Write what has come through Python's own logging, in its turn."""
        self.flush()
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  The name is logging's.
        """Log the place that the line comes from; nothing if not even that can be written."""
        if self._failing:
            return
        self._failing = True  # Called with the handler's lock held.
        try:
            error, at = sys.exc_info()[0] or Exception, place(record.pathname, record.lineno)
            structlog.get_logger("credhook").error("log_failed", source=record.name, error=error.__name__, at=at)
        finally:
            self._failing = False

    def _begin_as_fork(self) -> None:
        """What waits is the parent's to write."""
        self._gathers = False
        self._waiting = []


class LineLogger:
    """The end of a structlog logger: its lines go out beside Python's logging, by the same handler.

    Through that each would cost three times as much, and there is at least one for every event.
    """

    disabled = False

    def __init__(self, name: str, level: int, handler: LineHandler) -> None:
        self.name = name
        self.level = level
        self._handler = handler

    def isEnabledFor(self, level: int) -> bool:  # noqa: D102, N802  The name and its meaning are logging's.
        return level >= self.level

    def getEffectiveLevel(self) -> int:  # noqa: D102, N802  The name and its meaning are logging's.
        return self.level

    def info(self, line: str) -> None:  # noqa: D102  Likewise.
        self._handler.write(line, waits=True)

    def warning(self, line: str) -> None:  # noqa: D102  Likewise.
        self._handler.write(line, waits=False)

    debug = info
    error = exception = critical = warning
