"""Turns a worker's log into lines for the handlers' author: one for each handler of an event, errors below."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from rich.text import Text

Line = Mapping[str, Any]

#: The last log line of an attempt → its text and colour.
_OUTCOMES: Final = {
    "event_done": ("done", "green"),
    "event_waiting": ("waiting, again in {seconds} s", "yellow"),
    "event_dead": ("dead", "red"),
    "event_data_gone": ("data_gone", "red"),
    "event_handed_back": ("handed back", "yellow"),
    "event_unhandled": ("no handler wants this type", "yellow"),
    "lease_lost": ("lost to another worker", "yellow"),
}
#: Log lines that are shown together with the last one of their attempt.
_CAUSES: Final = {"handler_failed", "fetch_failed"}
_FAILED: Final = {"event_waiting", "event_dead", "event_data_gone"}
#: Of no interest while handlers are written. `credhook worker` prints an error of its own.
_SILENT: Final = {"worker_draining", "worker_stopped", "worker_cannot_start"}
#: Fields that are shown elsewhere or not at all. The others follow as NAME=VALUE.
_KNOWN: Final = {
    *("event", "level", "logger", "timestamp", "webhook_id", "event_type", "resource_id", "attempt", "handler"),
    *("error", "message", "frames", "at", "exc_info", "hint"),
}
_COLOURS: Final = {"warning": "yellow", "error": "red", "critical": "red"}


class LogReader:
    """Reads a worker's log, line by line.

    Attributes:
        failed: The events that wait for another attempt, or have been given up.
        ready: True once the worker takes events. The owner resets it when it starts another worker.
    """

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.ready = False
        self._handlers = ""
        self._causes: dict[str, list[Line]] = {}

    def read(self, text: str) -> list[Text]:
        """Return the lines to show for a line of the log: none if they are shown with a later one."""
        line = _parsed(text)
        if line is None:
            return [Text(text, "red" if text.startswith("Error:") else "")] if text.strip() else []
        event, webhook_id = line["event"], str(line.get("webhook_id"))
        if event in _CAUSES:
            self._causes.setdefault(webhook_id, []).append(line)
            return []
        if event in _OUTCOMES:
            if event in _FAILED:
                self.failed.add(webhook_id)
            else:
                self.failed.discard(webhook_id)
            return list(_event(line, self._causes.pop(webhook_id, [])))
        if event in {"worker_started", "plugins_started"}:
            return [Text(f"{_time(line)}  {self._begun(line)}", "dim")]
        if event == "handlers_not_loaded":
            return [Text(f"{_time(line)}  {line['handlers']} does not import", "red"), *_below(line)]
        return [] if event in _SILENT else list(_other(line))

    def _begun(self, line: Line) -> str:
        self._handlers = ", ".join(line.get("handlers", [self._handlers]))
        starting = line.get("starting", [])
        self.ready = not starting
        return f"starting: {', '.join(starting)}" if starting else f"ready: {self._handlers}"


def warnings_of(text: str) -> list[Text]:
    """Return the lines to show for a log line of another process: only warnings and errors."""
    line = _parsed(text)
    return list(_other(line)) if line is not None and line.get("level") in _COLOURS else []


def _parsed(text: str) -> Line | None:
    """Return a log line, or None if the text is something else."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and {"event", "timestamp"} <= line.keys() else None


def _event(line: Line, causes: list[Line]) -> Iterator[Text]:
    said, colour = _OUTCOMES[line["event"]]
    outcome = said.format(seconds=line.get("seconds"))
    handlers = line.get("handlers") or []
    for handler, ms in zip(handlers, line.get("ms") or [], strict=False):
        yield _row(line, handler, "done", "green", ms)
    skipped = line.get("skipped") or []
    for handler in skipped:
        yield _row(line, handler, "skipped: its condition did not want it", "yellow", None)
    for failure in causes:
        given_up = bool(failure.get("final"))
        how = ("dead", "red") if given_up else (outcome, colour)
        yield _row(line, failure.get("handler", "the details"), *how, failure.get("ms"))
        yield from _below(failure)
    if isinstance(lacking := line.get("lacking"), list):
        yield _row(line, ", ".join(lacking), "not loaded here: it waits for a worker that has it", "yellow", None)
    elif not handlers and not causes and not skipped:
        error = f": {line['error']}" if line.get("error") else ""
        yield _row(line, "", outcome + error, colour, None)


def _row(line: Line, handler: str, outcome: str, colour: str, ms: float | None) -> Text:
    kind = str(line.get("event_type", "")).removeprefix("openid4vc.")
    parts = _time(line), f"{kind:<26}", str(line.get("resource_id", "")), handler
    row = Text("".join(f"{part}  " for part in parts if part)).append(outcome, colour)
    return row if ms is None else row.append(f"  {ms:g} ms", "dim")


def _other(line: Line) -> Iterator[Text]:
    """Return a line of the author's, or a line that does not end an attempt."""
    rest = "".join(f"  {name}={value}" for name, value in line.items() if name not in _KNOWN)
    who = f"  {line['handler']}" if "handler" in line else ""
    yield Text(f"{_time(line)}{who}  {line['event']}{rest}", _COLOURS.get(str(line.get("level")), "dim"))
    yield from _below(line)


def _below(line: Line) -> Iterator[Text]:
    """Return what stands below a line: its error with the message, the places in the code, and a hint."""
    error, message = str(line.get("error", "")), str(line.get("message", ""))
    if error:
        said = "" if message in error else f": {message}"  # `KeyError 'givenName'` already has the message.
        yield Text(f"          {error}{said}", "red")
    for place in line.get("frames") or filter(None, [line.get("at")]):
        yield Text(f"          {place}")
    if line.get("hint"):
        yield Text(f"          {line['hint']}", "dim")


def _time(line: Line) -> str:
    try:
        return f"{datetime.fromisoformat(str(line['timestamp'])).astimezone():%H:%M:%S}"
    except ValueError:
        return "--:--:--"
