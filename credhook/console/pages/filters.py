"""Which events a page is about: what its address says, read as the options of `credhook events` are. Pure."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from credhook.store import State
from credhook.worker.commands.search.selection import (
    CAUSE_ID,
    Cursor,
    Selection,
    event_type,
    moment,
    resource_id,
    webhook_id,
)

Query = Sequence[tuple[str, str]]

_HANDLER: Final = re.compile(r"[!-~]{1,200}")


def selection(query: Query, now: datetime) -> Selection:
    """What the address says, of which empty values and names that are not ours say nothing.

    Ages are counted from `now`.

    Raises:
        ValueError: a part cannot be read; the message says which, and what it should be.
    """
    said = [(name, value.strip()) for name, value in query if value.strip()]
    read: dict[str, Callable[[str], Any]] = {
        "resource": resource_id,
        "cause": partial(_matching, CAUSE_ID, "cause's id"),
        "handler": partial(_matching, _HANDLER, "handler's name"),
        "since": partial(moment, now=now),
        "until": partial(moment, now=now),
        "after": Cursor.read,
    }
    found = Selection(
        states=frozenset(_state(value) for name, value in said if name == "state"),
        types=frozenset(event_type(value) for name, value in said if name == "type"),
        ids=tuple(webhook_id(value) for name, value in said if name == "id"),
        **{name: read[name](value) for name, value in said if name in read},
    )
    if found.since and found.until and found.since >= found.until:
        raise ValueError("“since” should be earlier than “until”")
    return found


def address(selection: Selection) -> list[tuple[str, str]]:
    """The parts of an address that say the same, with ages as the moments that they stood for."""
    parts = [("state", state.value) for state in sorted(selection.states)]
    parts += [("type", kind) for kind in sorted(selection.types)]
    parts += [("id", one) for one in selection.ids]
    parts += [(name, str(value)) for name in ("resource", "cause", "handler") if (value := getattr(selection, name))]
    parts += [(name, when.isoformat()) for name in ("since", "until") if (when := getattr(selection, name))]
    return parts


def in_words(selection: Selection) -> str:
    """The selection in one line, for pages and the log."""
    times = {name: when for name in ("since", "until") if (when := getattr(selection, name))}
    shown = {name: f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" for name, when in times.items()}
    said = (f"{name} {shown.get(name, value).removeprefix('openid4vc.')}" for name, value in address(selection))
    return ", ".join(said) or "all"


def _state(text: str) -> State:
    try:
        return State(text)
    except ValueError:
        raise ValueError(f"{text!r} is no state; they are {', '.join(State)}") from None


def _matching(pattern: re.Pattern[str], what: str, text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is no {what}")
    return text
