"""The events that the options of a command select. Pure."""

import difflib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Final, NamedTuple, Self

from credhook.events import EVENT_TYPES, is_resource_id
from credhook.store import LATEST, Keys, State

#: What the id of a cause looks like.
CAUSE_ID: Final = re.compile(r"[0-9a-f]{8}")
_WEBHOOK_ID: Final = re.compile(r"[!-~]{1,256}")
_FAMILY: Final = "openid4vc."
_AGE: Final = re.compile(r"(\d{1,9})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


#: Bytes of a cursor: the time, then a digest that tells events of one millisecond apart.
_TIME_BYTES: Final = 6
_DIGEST_BYTES: Final = 6
_CURSOR: Final = re.compile(r"[A-Za-z0-9_-]{16}")


class Cursor(NamedTuple):
    """A place in a list of events, which is ordered by time of receipt, then by a digest of the id.

    It depends only on the event, so it stays valid if the next page is found through another index.
    """

    received: int
    digest: bytes = bytes(_DIGEST_BYTES)

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a cursor.

        Raises:
            ValueError: the text is no cursor.
        """
        if not _CURSOR.fullmatch(text):
            raise ValueError(f"{text!r} is no cursor; a page ends with the one that the next begins with")
        as_bytes = urlsafe_b64decode(text)
        return cls(int.from_bytes(as_bytes[:_TIME_BYTES], "big"), as_bytes[_TIME_BYTES:])

    @property
    def above(self) -> Self:
        """Return the place directly before this one in a list, newest first."""
        place = int.from_bytes(self._bytes(), "big") + 1
        return self.read(urlsafe_b64encode(place.to_bytes(_TIME_BYTES + _DIGEST_BYTES, "big")).decode())

    def _bytes(self) -> bytes:
        return self.received.to_bytes(_TIME_BYTES, "big") + self.digest

    def __str__(self) -> str:
        return urlsafe_b64encode(self._bytes()).decode()


class EventSummary(NamedTuple):
    """The few fields of a record that a command can hold for a million events."""

    webhook_id: str
    type: str
    state: str
    #: When the receiver stored it, ms since the epoch.
    received: int

    @property
    def cursor(self) -> Cursor:
        """Return the event's place in a list."""
        as_bytes = self.webhook_id.encode(errors="surrogateescape")
        return Cursor(self.received, blake2b(as_bytes, digest_size=_DIGEST_BYTES).digest())


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of events. An event is selected if all given conditions hold for it.

    Attributes:
        states: any of these, or all.
        types: any of these event types, or all.
        resource: of this issuance or presentation.
        handler: this handler has ended, or is awaited.
        since: received at this time or later.
        until: received before this time.
        ids: only these, by webhook-id.
        limit: at most this many, the newest.
        after: only events after this place, from the newest to the oldest.
        cause: the id of their present cause of failure.
    """

    states: frozenset[State] = frozenset()
    types: frozenset[str] = frozenset()
    resource: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: tuple[str, ...] = ()
    limit: int | None = None
    handler: str | None = None
    after: Cursor | None = None
    cause: str | None = None

    @property
    def is_empty(self) -> bool:
        """Return True if every event is selected."""
        named = self.resource or self.handler or self.ids or self.cause
        return not (self.states or self.types or named or self.since or self.until)

    @property
    def span(self) -> tuple[int, int]:
        """Return the first and the end of the times of receipt, in ms since the epoch, the end excluded."""
        since = 0 if self.since is None else max(0, _milliseconds(self.since))
        until = LATEST + 1 if self.until is None else max(0, _milliseconds(self.until))
        return since, until if self.after is None else min(until, self.after.received + 1)

    def options(self) -> list[str]:
        """Return the options that select the same, without the cursor and with ages as times."""
        typed = [("--state", state.value) for state in sorted(self.states)]
        typed += [("--type", kind.removeprefix(_FAMILY)) for kind in sorted(self.types)]
        typed += [("--id", webhook_id) for webhook_id in self.ids]
        times = {"--since": self.since, "--until": self.until}
        typed += [(name, when.isoformat()) for name, when in times.items() if when]
        others = {"--resource": self.resource, "--handler": self.handler, "--cause": self.cause, "--limit": self.limit}
        typed += [(name, str(value)) for name, value in others.items() if value]
        return [word for option in typed for word in option]

    def indexes(self, index: Keys) -> tuple[str, ...]:
        """Return the sorted sets that hold all events in these states, or () if a state has no such set."""
        held = {
            State.ACCEPTED: (index.open,),
            State.WAITING: (index.open,),
            State.DEAD: (index.dead,),
            State.DATA_GONE: (index.dead,),
            State.UNHANDLED: index.all_unhandled,
            State.QUARANTINED: (index.quarantined,),
            State.UNREADABLE: (index.unreadable,),
        }
        if not self.states <= held.keys():
            return ()
        return tuple(sorted({key for state in self.states for key in held[state]}))


def _milliseconds(when: datetime) -> int:
    """Round up: an event of the same millisecond came later."""
    return -(-round(when.timestamp() * 1_000_000) // 1_000)


def event_type(text: str) -> str:
    """Return the event type of this name, which may lack the prefix `openid4vc.`.

    Raises:
        ValueError: there is no such type; the message names the nearest.
    """
    for name in (text, _FAMILY + text):
        if name in EVENT_TYPES:
            return name
    short = text.removeprefix(_FAMILY)
    near = difflib.get_close_matches(short, [name.removeprefix(_FAMILY) for name in EVENT_TYPES], n=1)
    remedy = f"did you mean {near[0]}?" if near else f"they are {', '.join(EVENT_TYPES)}"
    raise ValueError(f"{text!r} is no event type; {remedy}")


def moment(text: str, now: datetime) -> datetime:
    """Parse a time.

    Args:
        text: ISO 8601, in UTC unless it has an offset; or an age: `90s`, `15m`, `2h`, `7d`, `4w`.
        now: ages count back from this time.

    Raises:
        ValueError: the text is neither.
    """
    try:
        if age := _AGE.fullmatch(text):
            return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
        read = datetime.fromisoformat(text)
        return read if read.tzinfo else read.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} should be ISO 8601, such as 2026-11-21T09:30, or an age, such as 2h or 7d"
        ) from None


def resource_id(text: str) -> str:
    """Check the id of an issuance or presentation.

    Raises:
        ValueError: the text is no such id.
    """
    if not is_resource_id(text):
        raise ValueError(f"{text!r} is no issuance's or presentation's id")
    return text


def webhook_id(text: str) -> str:
    """Check the id of an event.

    Raises:
        ValueError: the text is no such id.
    """
    if not _WEBHOOK_ID.fullmatch(text):
        raise ValueError(f"{text!r} is no webhook-id")
    return text
