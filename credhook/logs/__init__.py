"""Logs: one line per event, whoever logs, and nothing in them that a delivery or a handler could have put there."""

import json
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import click
import orjson
import structlog

from credhook.logs.development import explained, in_development
from credhook.logs.places import is_authors, place, places, runs_now
from credhook.logs.stream import LineHandler, LineLogger

#: Control characters, and those that reverse or hide text: in a log line they could forge another or repaint the
#: screen. And halves of characters, which no stream takes.
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


#: Where what an error says begins in other libraries' messages; and in asyncio's, which quote a callback's arguments.
_EXCEPTION: Final = re.compile(r"\n|exception=")
_ARGUMENTS: Final = re.compile(r"\n|exception=|[(<{]")

#: Python's words for a coroutine that was made and dropped; what it quotes is a name in somebody's code.
_NEVER_AWAITED: Final = re.compile(r"coroutine '([A-Za-z_][\w.<>]*)' was never awaited")

#: Of those that an error came through.
_MOST_PLACES: Final = 4


def configure_logs(stream: Any = None) -> None:
    """One line per event on standard error: readable on a terminal, JSON elsewhere, whoever logs.

    `CREDHOOK_LOG` (`json` or `console`) overrides the choice, `CREDHOOK_LOG_LEVEL` sets the threshold (default `info`).
    """
    stream = stream or sys.stderr
    form = os.environ.get("CREDHOOK_LOG") or ("console" if stream.isatty() else "json")
    level = (os.environ.get("CREDHOOK_LOG_LEVEL") or "info").upper()
    for name, value, allowed in (
        ("CREDHOOK_LOG", form, ("json", "console")),
        ("CREDHOOK_LOG_LEVEL", level, ("DEBUG", "INFO", "WARNING", "ERROR")),
    ):
        if value not in allowed:
            click.echo(f"credhook: {name}: should be one of {', '.join(allowed).lower()}", err=True)
            sys.exit(2)
    threshold = logging.getLevelNamesMapping()[level]
    renderer = _console(stream.isatty()) if form == "console" else _json_line
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([_with_what_authors_see] if in_development() else []),
        _class_instead_of_traceback,
    ]
    handler = LineHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=[_without_foreign_details, *shared],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # They announce every request and every start in words of their own; ours are structured and say the same.
    for name in ("httpx", "httpcore", "uvicorn", "rq.worker", "rq.scheduler", "rq.queue", "rq.job"):
        logging.getLogger(name).setLevel(max(logging.WARNING, threshold))
    # What Python itself reports would be a traceback with the error's message, which may hold claims.
    sys.excepthook = lambda _, error, __: _log_uncaught("uncaught", error)
    threading.excepthook = lambda failed: _log_uncaught("thread_failed", failed.exc_value)
    sys.unraisablehook = lambda failed: _log_uncaught("unraisable", failed.exc_value)
    warnings.showwarning = _log_warning
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, renderer],
        logger_factory=lambda name="": LineLogger(name, threshold, handler),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _log_uncaught(event: str, error: BaseException | None) -> None:
    if not isinstance(error, SystemExit | KeyboardInterrupt):
        structlog.get_logger("credhook").error(event, exc_info=error)


def _log_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    """Say which warning it was and where, without what it says: a handler's may quote claims."""
    if category is RuntimeWarning and (forgotten := _NEVER_AWAITED.fullmatch(str(message))):
        at = place(filename, lineno) if is_authors(filename) else runs_now.get() or place(filename, lineno)
        hint = "it has not run: write await before the call"
        structlog.get_logger("credhook").warning("coroutine_not_awaited", coroutine=forgotten[1], at=at, hint=hint)
        return
    structlog.get_logger("credhook").warning("python_warning", category=category.__name__, at=place(filename, lineno))


Renderer = Callable[[Any, str, MutableMapping[str, Any]], str]

_AS_REPR: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS

#: What structlog's console prints below the line, as text that it expects to be a traceback.
_BELOW: Final = ("stack", "exception", "exc_info")


def _console(colors: bool) -> Renderer:
    """Keep on the line what structlog's console would print below it, and values whose text would end it."""
    renderer = structlog.dev.ConsoleRenderer(colors=colors)

    def render(logger: Any, name: str, event: MutableMapping[str, Any]) -> str:
        shown = {key: _shown(value) for key, value in event.items()}
        rest = [f"{key}={shown.pop(key)}" for key in _BELOW if key in shown]
        return " ".join([str(renderer(logger, name, shown)), *rest])

    return lambda logger, name, event: _always(partial(render, logger, name), _one_line(event))


def _json_line(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    """What nothing has to be escaped in, as in nearly all lines, is a line as it comes out of orjson."""
    if event.get("hint") != "":
        with suppress(Exception):  # Whatever a value's own methods raise: then it is made with more care.
            line = orjson.dumps(event, default=_refuse, option=_AS_REPR)
            if line.isascii() and b"\\" not in line and b"\x7f" not in line:
                return line.decode()
    return _always(_careful_json_line, _one_line(event))


def _refuse(_: object) -> Any:
    raise TypeError


def _careful_json_line(event: Mapping[str, Any]) -> str:
    """What is no JSON is shown as its repr: orjson would spell out a dataclass, and with it what a repr hides."""
    try:
        line = orjson.dumps(event, default=_repr, option=_AS_REPR).decode()
    except TypeError:  # Text that is no Unicode, numbers beyond 64 bits.
        return json.dumps(event, default=_repr)
    # What is left of it is deep within values, and JSON has an escape for each.
    return line if line.isprintable() else _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def _repr(value: Any) -> str:
    return str(_printable(repr(value)))


def _shown(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) else _printable(repr(value))


def _always(render: Callable[[dict[str, Any]], str], event: dict[str, Any]) -> str:
    """Show the types of values that cannot be rendered, rather than lose the line."""
    try:
        return render(event)
    except Exception:  # noqa: BLE001  Whatever a value's own methods raise.
        return render({key: _plain(value) for key, value in event.items()})


def _plain(value: Any) -> Any:
    return value if value is None or type(value) in {str, int, float, bool} else f"<{type(value).__name__}>"


def _class_instead_of_traceback(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Say which error it was and where, without the message and the locals of a traceback: either may hold claims."""
    error = _error(event.pop("exc_info", None))
    if error is not None:
        event.setdefault("error", type(error).__name__)
        event["at"] = places(error, _MOST_PLACES)
    return event


def _with_what_authors_see(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Say what the error says, and where in the author's code it was."""
    error = _error(event.get("exc_info"))
    if error is not None:
        event.update(explained(error))
    return event


def _error(given: object) -> BaseException | None:
    """The error that a line was given, in any of the forms that logging has for it."""
    error = sys.exc_info()[1] if given is True else given[1] if isinstance(given, tuple) else given
    return error if isinstance(error, BaseException) else None


def _without_foreign_details(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut what other libraries write into their messages: tracebacks, and exceptions with what they say."""
    details = _ARGUMENTS if event["_record"].name == "asyncio" else _EXCEPTION
    event["event"] = details.split(str(event["event"]), maxsplit=1)[0]
    return event


def _one_line(event: Mapping[str, Any]) -> dict[str, Any]:
    """Escape what could end the line or act on a terminal, in names and values alike; leave out a hint that is none."""
    try:
        return {_printable(name): _printable(value) for name, value in event.items() if (name, value) != ("hint", "")}
    except RecursionError:  # A list that holds itself.
        return {_printable(name): _printable(_plain(value)) for name, value in event.items()}


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        if value.isprintable():
            return value
        return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), value)
    if isinstance(value, (list, tuple)):
        return [_printable(item) for item in value]
    if isinstance(value, BaseException):
        return type(value).__name__  # As for `exc_info`.
    return value
