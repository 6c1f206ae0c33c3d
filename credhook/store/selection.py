"""Select events by their facts, and find them, newest first. Commands and the console share this."""

import difflib
import functools
import heapq
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, NamedTuple, Self, cast

from credhook.events import EVENT_TYPES
from credhook.store import LATEST_MS, OTHER, Keys, State
from credhook.store.causes import events_with
from credhook.store.store import SyncStore

#: What the id of a cause looks like.
CAUSE_ID: Final = re.compile(r"[0-9a-f]{8}")
_FAMILY: Final = "openid4vc."
_AGE: Final = re.compile(r"(\d{1,9})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

#: Hexadecimal digits of a cursor: the time, then a digest that tells events of one millisecond apart.
_DIGITS: Final = 12
_CURSOR: Final = re.compile(r"[0-9a-f]{24}")
#: Records that one script reads. It blocks Redis for two milliseconds.
PAGE: Final = 500
#: Entries of one index in the first page, and in the longest.
_FIRST_PAGE, _LONGEST_PAGE = 50, 2_000
#: Up to this many events in the wanted states are all read. Beyond that, the event index is searched.
_FEW: Final = 10_000

#: The webhook-id of an event that may match, and its time in the index, in ms.
Candidate = tuple[bytes, int]


class UnknownCause(LookupError):
    """The store has no cause of this id. The message says where to find the ids."""


class Cursor(NamedTuple):
    """A place in a list of events, which is ordered by time of receipt, then by a digest of the id.

    It depends only on the event, so it stays valid if the next page is found through another index.
    """

    received: int
    digest: str = "0" * _DIGITS

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a cursor.

        Raises:
            ValueError: the text is no cursor.
        """
        if not _CURSOR.fullmatch(text):
            raise ValueError(f"{text!r} is no cursor; a page ends with the one that the next begins with")
        return cls(int(text[:_DIGITS], 16), text[_DIGITS:])

    def __str__(self) -> str:
        return f"{self.received:0{_DIGITS}x}{self.digest}"


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
        return Cursor(self.received, _digest(self.webhook_id))


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=_DIGITS // 2).hexdigest()


def fingerprint(events: Iterable[EventSummary]) -> str:
    """Return what differs if other events are selected, or if one of them is settled otherwise. Open is open."""
    states: dict[str, str] = {State.ACCEPTED: "open", State.WAITING: "open"}
    return _digest("\n".join(sorted(f"{one.webhook_id} {states.get(one.state, one.state)}" for one in events)))


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of events. An event is selected if all given conditions hold for it.

    Attributes:
        handler: this handler has ended, or is awaited.
        since: received at this time or later.
        until: received before this time.
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
        return self == Selection(limit=self.limit, after=self.after)

    @property
    def span(self) -> tuple[int, int]:
        """Return the first and the end of the times of receipt, in ms since the epoch, the end excluded."""
        since = 0 if self.since is None else max(0, _milliseconds(self.since))
        until = LATEST_MS + 1 if self.until is None else max(0, _milliseconds(self.until))
        return since, until if self.after is None else min(until, self.after.received + 1)

    def indexes(self, keys: Keys) -> tuple[str, ...]:
        """Return the sorted sets that hold all events in these states, or () if a state has no such set."""
        held = {
            State.ACCEPTED: (keys.open,),
            State.WAITING: (keys.open,),
            State.DEAD: (keys.dead,),
            State.DATA_GONE: (keys.dead,),
            State.UNHANDLED: keys.all_unhandled,
            State.QUARANTINED: (keys.quarantined,),
            State.UNREADABLE: (keys.unreadable,),
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
    short = text.removeprefix(_FAMILY)
    if _FAMILY + short in EVENT_TYPES:
        return _FAMILY + short
    near = difflib.get_close_matches(short, [name.removeprefix(_FAMILY) for name in EVENT_TYPES], n=1)
    remedy = f"did you mean {near[0]}?" if near else f"they are {', '.join(EVENT_TYPES)}"
    raise ValueError(f"{text!r} is no event type; {remedy}")


def moment(text: str, now: datetime) -> datetime:
    """Parse a time: ISO 8601, in UTC unless it has an offset; or an age before `now`: `90s`, `15m`, `2h`, `7d`, `4w`.

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


def valid(is_valid: Callable[[str], object], what: str, text: str) -> str:
    """Return the text, or raise ValueError if it is invalid."""
    if not is_valid(text):
        raise ValueError(f"{text!r} is no {what}")
    return text


#: Any text that Redis can hold: no surrogates.
an_id: Final = functools.partial(valid, re.compile(r"[^\ud800-\udfff]+").fullmatch, "id")


class Page(NamedTuple):
    """Events that match, newest first.

    Attributes:
        after: where the next page begins; None if this is the last.
        looked_back_to: if the search stopped early: the time that it has reached, in ms since the epoch.
    """

    events: list[EventSummary]
    after: Cursor | None = None
    looked_back_to: int | None = None


def read_page(store: SyncStore, selection: Selection, *, patience: int | None = None) -> Page:
    """Return the events that match, each once, up to the limit.

    With `patience`, look at no more candidates than about so many.

    Raises:
        UnknownCause: the store does not have the selected cause.
    """
    limit, after, found, looked = selection.limit, selection.after, dict[str, EventSummary](), 0
    candidates, newest_first = _candidates(store, selection)
    size = PAGE if limit is None else min(PAGE, limit + _FIRST_PAGE)
    while batch := list(islice(candidates, size)):
        for one in _select(store, selection, batch):
            # An event leaves its cause once it is done. Some have done so since the search began.
            left_its_cause = selection.cause and one.state == State.DONE
            if (after is None or one.cursor < after) and not left_its_cause:
                found[one.webhook_id] = one
        looked += len(batch)
        size = PAGE
        if not newest_first:
            continue
        oldest = batch[-1][1]  # Others of that millisecond may follow.
        if limit is not None and len(found) > limit and sum(one.received > oldest for one in found.values()) > limit:
            break
        if patience is not None and looked > patience:
            certain = _newest_first(one for one in found.values() if one.received > oldest)
            return Page(certain, Cursor(oldest + 1), oldest + 1)
    events = _newest_first(found.values())
    if limit is None or len(events) <= limit:
        return Page(events)
    return Page(events[:limit], events[limit - 1].cursor)


def _newest_first(events: Iterable[EventSummary]) -> list[EventSummary]:
    return sorted(events, key=lambda one: one.cursor, reverse=True)


def absent(store: SyncStore, selection: Selection) -> list[EventSummary]:
    """Return the events that the selection names and the store does not have. Only their ids are known."""
    wanted = tuple(dict.fromkeys(selection.ids))
    pipeline = store.redis.pipeline(transaction=False)
    for webhook_id in wanted:
        pipeline.exists(store.keys.event + webhook_id)
    there = zip(wanted, pipeline.execute(), strict=True)
    return [EventSummary(webhook_id, "", "", 0) for webhook_id, known in there if not known]


def _candidates(store: SyncStore, selection: Selection) -> tuple[Iterator[Candidate], bool]:
    """Return the events that may match, and whether the newest come first.

    Raises:
        UnknownCause: the store does not have the cause.
    """
    named: Iterable[str] | None = selection.ids or None
    if selection.cause:
        named = events_with(store, selection.cause)
        if not named and not store.redis.exists(store.keys.cause + selection.cause):
            raise UnknownCause(f"there is no cause {selection.cause}; `credhook causes` lists them")
        if selection.ids:
            named = set(selection.ids).intersection(named)
    if named is not None:
        return ((webhook_id.encode(errors="surrogateescape"), 0) for webhook_id in dict.fromkeys(named)), False
    sets = selection.indexes(store.keys)
    if sets and (selection.limit is None or sum(map(store.redis.zcard, sets)) <= _FEW):
        # An event may be named twice: Redis repeats members, and an event may change its set meanwhile.
        return ((one, int(at)) for key in sets for one, at in store.redis.zscan_iter(key, count=PAGE)), False
    # An event whose type an older version did not know stands among the others until it is replayed.
    types = (*selection.types, OTHER) if selection.types else (*EVENT_TYPES, OTHER)
    keys = store.keys.event_indexes(types, selection.resource)
    return _newest(store, keys, *selection.span, page=min(selection.limit or _LONGEST_PAGE, _FIRST_PAGE)), True


def _newest(store: SyncStore, keys: Sequence[str], start: int, end: int, *, page: int) -> Iterator[Candidate]:
    """Yield the entries of these indexes from `end`, not included, back to `start`, newest first."""
    pipeline = store.redis.pipeline(transaction=False)
    for key in keys:
        pipeline.zrange(key, cast(int, f"({end}"), start, desc=True, byscore=True, offset=0, num=page, withscores=True)
    first_pages = zip(keys, pipeline.execute(), strict=True)
    entries = (_entries(store, key, start, page, first) for key, first in first_pages if first)
    return heapq.merge(*entries, key=lambda one: -one[1])


def _entries(
    store: SyncStore, key: str, start: int, page: int, found: list[tuple[bytes, float]]
) -> Iterator[Candidate]:
    """Yield the entries of one index, newest first, a page at a time; `found` is the first page."""
    last, skip = -1.0, 0
    while found:
        yield from ((member, int(score)) for member, score in found)
        if len(found) < page:
            return
        same = sum(score == found[-1][1] for _, score in found)
        skip = same + (skip if found[-1][1] == last else 0)
        last, page = found[-1][1], min(4 * page, _LONGEST_PAGE)
        more = store.redis.zrange(
            key, int(last), start, desc=True, byscore=True, offset=skip, num=page, withscores=True
        )
        found = cast("list[tuple[bytes, float]]", more)


def _select(store: SyncStore, selection: Selection, batch: Iterable[Candidate]) -> Iterator[EventSummary]:
    """Read the candidates' records in one script, and yield the events that match."""
    start, end = selection.span
    wanted: dict[str, Any] = {
        "types": dict.fromkeys(selection.types, True),
        "states": dict.fromkeys(selection.states, True),
        "resource": selection.resource,
        "handler": selection.handler,
    }
    filter_ = {"from": start, "until": end, **{name: value for name, value in wanted.items() if value}}
    arguments = [part for one in batch for part in one]
    for parts in store.run("select", [json.dumps(filter_), *arguments]):
        webhook_id, kind, state, received = (part.decode(errors="backslashreplace") for part in parts)
        yield EventSummary(webhook_id, sys.intern(kind), sys.intern(state), int(received))
