"""Write log lines to one stream: those of structlog directly, those of other libraries through Python's logging."""

import logging
import sys
from contextlib import suppress
from typing import Any

import structlog

from credhook.logs.places import place


class LineHandler(logging.StreamHandler[Any]):
    """Writes lines. If a line cannot be formatted, it logs only where the line comes from.

    Python would print the message and its arguments, unformatted, with a traceback.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._failing = False

    def write(self, line: str) -> None:
        """Write a finished line, or nothing if the stream is broken."""
        self.acquire()
        try:
            with suppress(Exception):
                self.stream.write(line + "\n")
                self.flush()
        finally:
            self.release()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  The name is logging's.
        """Log the place that the line comes from."""
        if self._failing:
            return
        self._failing = True  # Called with the handler's lock held.
        try:
            error, at = sys.exc_info()[0] or Exception, place(record.pathname, record.lineno)
            structlog.get_logger("credhook").error("log_failed", source=record.name, error=error.__name__, at=at)
        finally:
            self._failing = False


class LineLogger:
    """The end of a structlog logger. Through Python's logging each line would take three times as long."""

    disabled = False

    def __init__(self, name: str, level: int, handler: LineHandler) -> None:
        self.name = name
        self.level = level
        self.debug = self.info = self.warning = self.error = self.exception = self.critical = handler.write

    def isEnabledFor(self, level: int) -> bool:  # noqa: D102, N802  As in logging.
        return level >= self.level

    def getEffectiveLevel(self) -> int:  # noqa: D102, N802  As in logging.
        return self.level
