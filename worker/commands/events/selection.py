"""Which events a command is about: what its options say. Pure."""

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from credhook.events import EVENT_TYPES
from credhook.ledger import Index, State

_FAMILY: Final = "openid4vc."
_AGE: Final = re.compile(r"(\d{1,9})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class EventSummary(NamedTuple):
    """As much of a record as decides whether it is meant, and is worth keeping for a million of them."""

    webhook_id: str
    type: str
    state: str
    #: When the receiver stored it, ms since the epoch.
    received: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What the options say. An event is meant if everything that is given holds for it.

    Attributes:
        states: any of these, or all.
        types: any of these event types, or all.
        resource: of this issuance or presentation.
        since: received then or later.
        until: received earlier than that.
        ids: only these, by webhook-id.
        limit: at most so many, the newest.
    """

    states: frozenset[State] = frozenset()
    types: frozenset[str] = frozenset()
    resource: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it means every event."""
        return not (self.states or self.types or self.resource or self.since or self.until or self.ids)

    def matches(self, found: EventSummary, resource: str) -> bool:
        """Whether the event is one of those, the limit left aside."""
        return (
            (not self.states or found.state in self.states)
            and (not self.types or found.type in self.types)
            and self.resource in {None, resource}
            and (self.since is None or found.received >= self.since.timestamp() * 1_000)
            and (self.until is None or found.received < self.until.timestamp() * 1_000)
        )

    def indexes(self, index: Index) -> tuple[str, ...]:
        """The sorted sets that hold all events in these states; none if some states have no such set."""
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


def event_type(text: str) -> str:
    """The event type of that name, or of that name without the `openid4vc.` before it.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    for name in (text, _FAMILY + text):
        if name in EVENT_TYPES:
            return name
    short = text.removeprefix(_FAMILY)
    near = difflib.get_close_matches(short, [name.removeprefix(_FAMILY) for name in EVENT_TYPES], n=1)
    remedy = f"did you mean {near[0]}?" if near else f"they are {', '.join(EVENT_TYPES)}"
    raise ValueError(f"{text!r} is no event type; {remedy}")


def moment(text: str, now: datetime) -> datetime:
    """The moment that the text names.

    Args:
        text: ISO 8601, in UTC unless it says otherwise; or how long ago it was: `90s`, `15m`, `2h`, `7d`, `4w`.
        now: what ages are counted from.

    Raises:
        ValueError: it is neither.
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
