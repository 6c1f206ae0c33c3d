"""Turns log lines of a worker into lines for the handlers' author: what happened to which event, errors below."""

import json
from datetime import datetime
from typing import Any, Final

#: Log event → the text that is shown for it. Other log events are shown by their name.
_PHRASES: Final = {
    "worker_started": "ready",
    "plugins_started": "ready",
    "handler_failed": "failed",
    "fetch_failed": "the details cannot be fetched",
    "event_done": "done",
    "event_waiting": "waiting",
    "event_dead": "dead",
    "event_data_gone": "data_gone",
    "event_handed_back": "handed back",
    "event_unhandled": "no handler for it",
    "lease_lost": "lost to another worker",
}
_FAILED: Final = {"event_waiting", "event_dead", "event_data_gone"}
#: Of no interest while handlers are written. `credhook worker` prints an error of its own.
_SILENT: Final = {"worker_draining", "worker_stopped", "worker_cannot_start"}
#: Fields of the lines with a text of their own that follow it as NAME=VALUE. Other lines show all but `_KNOWN`.
_SHOWN: Final = ("handlers", "starting", "seconds", "ms", "skipped", "lacking", "final", "error")
#: Fields that are shown elsewhere or not at all.
_KNOWN: Final = {
    *("event", "level", "logger", "timestamp", "webhook_id", "event_type", "resource_id", "attempt", "handler"),
    *("message", "frames", "members", "at", "exc_info", "hint"),
}


class LogReader:
    """Reads a worker's log, line by line.

    Attributes:
        failed: The events that wait for another attempt, or have been given up.
    """

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def read(self, text: str) -> list[str]:
        """Return the lines to show for a line of the log."""
        line = _parsed(text)
        if line is None:
            return [text] if text.strip() else []
        event, webhook_id = line["event"], str(line.get("webhook_id"))
        if event in _FAILED:
            self.failed.add(webhook_id)
        elif event == "event_done":
            self.failed.discard(webhook_id)
        return [] if event in _SILENT else _shown(line)


def warnings_of(text: str) -> list[str]:
    """Return the lines to show for a log line of another process: only warnings and errors."""
    line = _parsed(text)
    return _shown(line) if line and line["level"] in {"warning", "error", "critical"} else []


def _parsed(text: str) -> dict[str, Any] | None:
    """Return a log line, or None if the text is something else."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and {"event", "level", "timestamp"} <= line.keys() else None


def _shown(line: dict[str, Any]) -> list[str]:
    """Return one line, and below it the error's message, its places in the author's code and the hint."""
    phrase = _PHRASES.get(line["event"])
    if phrase == "ready" and line.get("starting"):
        phrase = "starting"
    names = [name for name in line if (name in _SHOWN and line[name] if phrase else name not in _KNOWN)]
    parts = [
        f"{datetime.fromisoformat(line['timestamp']).astimezone():%H:%M:%S}",
        line.get("event_type", "").removeprefix("openid4vc."),
        line.get("resource_id", ""),
        line.get("handler", ""),
        phrase or line["event"],
        *(f"{name}={', '.join(map(str, v)) if isinstance(v := line[name], list) else v}" for name in names),
    ]
    at = line.get("at")
    below = [line.get("message"), *(line.get("frames") or (at if isinstance(at, list) else [at])), line.get("hint")]
    return ["  ".join(filter(None, parts)), *(f"          {text}" for text in below if text)]
