"""Write one log line for each event: JSON, or text on a terminal.

Log lines hold ids, error classes and places in code. They hold no error messages, no local variables and no claims.
"""

import json
import logging
import os
import re
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import structlog

from credhook.logs.places import (
    NEVER_AWAITED,
    authors_frames,
    dropped_coroutine,
    is_authors,
    leaves,
    members,
    place,
    places,
    runs_now,
)
from credhook.settings import LogSettings
from credhook.terminal import plain

#: Where a message of another library begins to quote an error.
_EXCEPTION: Final = re.compile(r"\n|exception=")
#: Where a message of asyncio begins to quote an error, or the arguments of a callback.
_ARGUMENTS: Final = re.compile(r"\n|exception=|[(<{]")
#: Places in code that a line names for an error.
_MAX_PLACES: Final = 4
#: Members of an exception group that a line names.
_MAX_MEMBERS: Final = 8
#: Attributes that each record of Python's logging has. All others come from `extra=`.
_OF_RECORDS: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
#: Fields of `extra=` that a line shows, and characters of each.
_MAX_EXTRA, _MAX_EXTRA_CHARACTERS = 20, 1_000
#: Libraries that log each request and each start. Our own lines say the same.
_QUIET: Final = ("httpx", "httpcore", "uvicorn", "rq.worker", "rq.scheduler", "rq.queue", "rq.job")
#: Dataclasses are shown by their repr, which hides claims. orjson would write all their fields.
_AS_REPR: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
#: Fields that structlog's console prints below the line, as a traceback.
_BELOW: Final = ("stack", "exception", "exc_info")
_FLOOD_SECONDS: Final = 60.0
#: The handler that the process has configured last, if any.
_OURS: "Final[list[LineHandler]]" = []
#: structlog's configuration, as the process has set it last.
_STRUCTLOG: Final[dict[str, Any]] = {}

#: Levels of methods that have another name, as structlog names them.
_LEVELS: Final = {"warn": "warning", "exception": "error"}

Event = MutableMapping[str, Any]


def configure_logs(stream: Any = None) -> None:
    """Log to `stream`, default standard error: text on a terminal, JSON elsewhere.

    `CREDHOOK_LOG` (`json` or `console`) overrides the choice. `CREDHOOK_LOG_LEVEL` is the threshold (default `info`).
    """
    stream = stream or sys.stderr
    settings = LogSettings()
    form, level = settings.log or ("console" if stream.isatty() else "json"), settings.log_level.upper()
    threshold = logging.getLevelNamesMapping()[level]
    renderer = _console(stream.isatty()) if form == "console" else _json_line
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _add_origin,
        _replace_error,
    ]
    handler = LineHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=[_cut_foreign_details, *shared, _add_extra],
        )
    )
    _OURS[:] = [handler]
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, threshold))
    # Python itself would write tracebacks with error messages, which may hold claims.
    sys.excepthook = lambda _, error, __: _log_uncaught("uncaught", error)
    threading.excepthook = lambda failed: _log_uncaught("thread_failed", failed.exc_value)
    sys.unraisablehook = lambda failed: _log_uncaught("unraisable", failed.exc_value)
    warnings.showwarning = _log_warning
    warnings.filterwarnings("always", NEVER_AWAITED, RuntimeWarning)  # By default, only the first at each line.
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, _format_arguments, *shared, renderer],
        logger_factory=lambda name="": LineLogger(name, threshold, handler),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    _STRUCTLOG.update(structlog.get_config())


def insist_on_logs() -> None:
    """Configure the logs again if other code has configured them: its lines could hold messages, and so claims.

    Handlers that write elsewhere, as those of Sentry, stay.
    """
    root = logging.getLogger()
    terminals = {
        handler
        for handler in root.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream in {sys.stdout, sys.stderr}
    }
    is_structlog_ours = all(value is _STRUCTLOG.get(name) for name, value in structlog.get_config().items())
    if not _OURS or (_OURS[-1] in root.handlers and terminals <= set(_OURS) and is_structlog_ours):
        return
    others = [handler for handler in root.handlers if handler not in terminals]
    configure_logs(_OURS[-1].stream)
    for handler in others:
        root.addHandler(handler)
    hint = "leave its logging as it is: credhook writes the lines of all loggers, without values"
    structlog.get_logger("credhook").warning("logging_restored", hint=hint)


def in_development() -> bool:
    """Return True if `credhook dev` has started this process. Log lines then hold error messages."""
    return os.environ.get("CREDHOOK_DEV") == "1"


class FloodGuard:
    """Allows a limited number of log lines of each kind in a minute, so that a flood cannot fill the disk."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow `limit` lines of each kind; `clock` returns monotonic seconds."""
        self._limit = limit
        self._clock = clock
        self._period_began = clock()
        self._admitted = Counter[str]()
        self._dropped = Counter[str]()

    def admit(self, kind: str) -> dict[str, int] | None:
        """Return fields for the line: `unlogged_before` if lines before it were dropped. None: drop this line, too."""
        now = self._clock()
        if now - self._period_began >= _FLOOD_SECONDS:
            self._period_began = now
            self._admitted.clear()
        self._admitted[kind] += 1
        if self._admitted[kind] > self._limit:
            self._dropped[kind] += 1
            return None
        dropped = self._dropped.pop(kind, 0)
        return {"unlogged_before": dropped} if dropped else {}


class LineHandler(logging.StreamHandler[Any]):
    """Writes lines to a stream. A broken stream is ignored."""

    def write(self, line: str) -> None:
        """Write a finished line."""
        self.acquire()
        try:
            with suppress(Exception):
                self.stream.write(line + "\n")
                self.stream.flush()
        finally:
            self.release()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  The name is logging's.
        """Log the place that wrote a line which cannot be formatted. Python would print the line's arguments."""
        error, at = sys.exc_info()[0] or Exception, place(record.pathname, record.lineno)
        structlog.get_logger("credhook").error("log_failed", source=record.name, error=error.__name__, at=at)


class LineLogger:
    """Writes the lines of structlog. A record of Python's logging for each line would take three times as long."""

    disabled = False

    def __init__(self, name: str, threshold: int, handler: LineHandler) -> None:
        self.name = name
        self._threshold = threshold
        self.debug = self.info = self.warning = self.error = self.exception = self.critical = handler.write

    def getEffectiveLevel(self) -> int:  # noqa: N802  structlog asks it, as it asks Python's loggers.
        """Return the lowest level that is written."""
        return self._threshold

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  Authors may ask it.
        """Return True if lines of this level are written."""
        return level >= self._threshold


def _log_uncaught(event: str, error: BaseException | None) -> None:
    if not isinstance(error, SystemExit | KeyboardInterrupt):
        structlog.get_logger("credhook").error(event, exc_info=error)


def _log_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    """Log the category and the place of a warning. Its message may quote claims."""
    log, at = structlog.get_logger("credhook"), place(filename, lineno)
    if category is RuntimeWarning and (dropped := dropped_coroutine(message)):
        at = running.at if (running := runs_now.get()) and not is_authors(filename) else at
        hint = "it has not run: write await before the call"
        log.warning("coroutine_not_awaited", coroutine=dropped, at=at, hint=hint)
    else:
        log.warning("python_warning", category=category.__name__, at=at)


def _json_line(_: Any, __: str, event: Event) -> str:
    """Return the event as one line of JSON. Keep the line even if a value cannot be written."""
    try:
        line = orjson.dumps(event, default=_text, option=_AS_REPR).decode()
    except TypeError:  # Lone surrogates, numbers beyond 64 bits, keys that are not text, a list that holds itself.
        line = json.dumps({key: _plain(value) for key, value in event.items()})
    if line.isprintable():
        return line
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in line)


def _plain(value: object) -> object:
    """Return a value that JSON can hold. In a list that cannot be written, replace the entries that are not scalars."""
    with suppress(TypeError):
        return orjson.loads(orjson.dumps(value, default=_text, option=_AS_REPR | orjson.OPT_NON_STR_KEYS))
    scalar = str | int | float | None
    if type(value) is list:
        return [entry if isinstance(entry, scalar) else _text(entry) for entry in value]
    return value if isinstance(value, scalar) else _text(value)


def _text(value: object) -> str:
    """Return the repr of a value, or only its type if the repr fails or may hold the message of an error."""
    if not isinstance(value, BaseException | list | tuple | dict):
        with suppress(Exception):
            return repr(value)
    return type(value).__name__


def _console(colors: bool) -> Callable[[Any, str, Event], str]:
    """Return a renderer for terminals. It writes one line, where structlog's would write several."""
    renderer = structlog.dev.ConsoleRenderer(colors=colors)

    def render(logger: Any, name: str, event: Event) -> str:
        line = json.loads(_json_line(logger, name, event))
        # The renderer writes the repr of values that are not text.
        fields = {plain(key): plain(value) if isinstance(value, str) else value for key, value in line.items()}
        below = [f"{key}={fields.pop(key)}" for key in _BELOW if key in fields]
        return " ".join([str(renderer(logger, name, fields)), *below])

    return render


def _add_origin(logger: Any, method: str, event: Event) -> Event:
    """Add the handler that runs now and its event; level, logger and time. Four processors would take 3 us more."""
    if running := runs_now.get():
        for name, value in running.fields().items():
            event.setdefault(name, value)
    record: logging.LogRecord | None = event.get("_record")  # Of a library that logs by Python's logging.
    event["level"] = _LEVELS.get(method, method)
    event["logger"] = record.name if record else logger.name
    event["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return event


def _format_arguments(_: Any, __: str, event: Event) -> Event:
    """Put the arguments of `log.info("got %s", id)` into the text, as Python's logging does. Errors are their class."""
    arguments = event.get("positional_args")
    if isinstance(arguments, tuple):
        shown = tuple(
            type(argument).__name__ if isinstance(argument, BaseException) else argument for argument in arguments
        )
        with suppress(Exception):  # If the arguments do not fit, the line keeps both.
            event["event"] = str(event["event"]) % (shown[0] if shown and isinstance(shown[0], dict) else shown)
            del event["positional_args"]
    return event


def _replace_error(_: Any, __: str, event: Event) -> Event:
    """Replace an error by its class, the places that it came through, and its members if it is a group.

    In development, add the error's message, and its `frames` in the author's code. Drop an empty hint.
    """
    exc_info = event.pop("exc_info", None)  # An error, a tuple, or True for the current error.
    error = sys.exc_info()[1] if exc_info is True else exc_info[1] if isinstance(exc_info, tuple) else exc_info
    if isinstance(error, BaseException):
        event.setdefault("error", type(error).__name__)
        event["at"] = places(error, _MAX_PLACES) or event.get("at", [])
        if error_members := members(error, _MAX_MEMBERS):
            event["members"] = error_members
        if in_development():
            event["message"], event["frames"] = _message(error), authors_frames(error)
            for member in leaves(error)[:_MAX_MEMBERS] if error_members else ():
                event["frames"] += [f"{type(member).__name__}: {_message(member)}", *authors_frames(member)]
    if event.get("hint") == "":
        del event["hint"]
    return event


def _message(error: BaseException) -> str:
    with suppress(Exception):  # The author's `__str__` may fail.
        return str(error)
    return ""


def _add_extra(_: Any, __: str, event: Event) -> Event:
    """Add the fields that an author has passed to Python's logging as `extra=`. A library's fields may hold claims."""
    record: logging.LogRecord = event["_record"]
    if is_authors(record.pathname):
        names = [name for name in vars(record) if name not in _OF_RECORDS][:_MAX_EXTRA]
        for name in names:
            event.setdefault(name, _cut(vars(record)[name]))
    return event


def _cut(value: object) -> object:
    """Return the value, or if it is too long the beginning of its text."""
    if isinstance(value, str):
        return value[:_MAX_EXTRA_CHARACTERS]
    with suppress(TypeError):  # Such as a list that holds itself.
        text = orjson.dumps(value, default=_text, option=_AS_REPR | orjson.OPT_NON_STR_KEYS).decode()
        return value if len(text) <= _MAX_EXTRA_CHARACTERS else text[:_MAX_EXTRA_CHARACTERS]
    return _text(value)[:_MAX_EXTRA_CHARACTERS]


def _cut_foreign_details(_: Any, __: str, event: Event) -> Event:
    """Cut tracebacks and errors from the messages of other libraries."""
    details = _ARGUMENTS if event["_record"].name == "asyncio" else _EXCEPTION
    event["event"] = details.split(str(event["event"]), maxsplit=1)[0]
    return event
