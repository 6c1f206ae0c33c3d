"""Select events by their facts, and find them, newest first. Commands and the console share this."""

import difflib
import functools
import itertools
import json
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

from credhook.events import EVENT_TYPES
from credhook.store import LATEST_MS, Keys, State
from credhook.store.bulk import batched
from credhook.store.causes import events_with
from credhook.store.store import SyncStore

#: What the id of a cause looks like.
CAUSE_ID: Final = re.compile(r"[0-9a-f]{8}")
_FAMILY: Final = "openid4vc."
_AGE: Final = re.compile(r"(\d{1,9})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

#: Records that one script reads. It blocks Redis for about two milliseconds.
PAGE: Final = 500
#: Records that the first script reads beyond the limit: some may not match.
_FIRST_PAGE: Final = 50
#: Up to this many events in the wanted states are all read. Beyond that, the index is searched.
_FEW: Final = 10_000
#: Ms by which an event's entry in the index may be later than its time of receipt, unless Redis's clock was set back.
_LATE_MS: Final = 1_000

_CURSOR: Final = re.compile(r"(\d{1,15})-(\d{1,15})")


class UnknownCause(LookupError):
    """The store has no cause of this id. The message says where to find the ids."""


class Cursor(NamedTuple):
    """A place in the list of all events: the entry of an event in `by_time`.

    It depends only on the event, so it stays valid if the next page is found in another way.
    """

    ms: int
    number: int = 0

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a cursor.

        Raises:
            ValueError: the text is no cursor.
        """
        if not (parts := _CURSOR.fullmatch(text)):
            raise ValueError(f"{text!r} is no cursor; a page ends with the one that the next begins with")
        return cls(int(parts[1]), int(parts[2]))

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"


class EventSummary(NamedTuple):
    """The few fields of a record that a command can hold for a million events."""

    webhook_id: str
    type: str = ""
    state: str = ""
    cursor: Cursor = Cursor(0)


def fingerprint(events: Iterable[EventSummary]) -> int:
    """Return a number that differs if other events are selected, or if one of them is settled otherwise. Open is open.

    The number of all events is the exclusive or of the numbers of their parts.
    """
    states: dict[str, str] = {State.ACCEPTED: "open", State.WAITING: "open"}
    lines = (f"{event.webhook_id} {states.get(event.state, event.state)}" for event in events)
    digests = (blake2b(line.encode(), digest_size=8).digest() for line in lines)
    return functools.reduce(operator.xor, map(int.from_bytes, digests), 0)


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
        return since, LATEST_MS + 1 if self.until is None else max(0, _milliseconds(self.until))

    def state_sets(self, keys: Keys) -> tuple[str, ...]:
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
    for name in (text, _FAMILY + text):
        if name in EVENT_TYPES:
            return name
    short = text.removeprefix(_FAMILY)
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


def read_page(store: SyncStore, selection: Selection, *, most_read: int | None = None) -> Page:
    """Return the events that match, each once, up to the limit.

    With `most_read`, read no more events than about so many.

    Raises:
        UnknownCause: the store does not have the selected cause.
    """
    limit, looked, events = selection.limit, 0, list[EventSummary]()
    named = _named(store, selection)
    if named is not None:
        return _cut(sorted(named, key=lambda event: event.cursor, reverse=True), limit)
    for page, number, reached in _listed(store, selection):
        events += page
        looked += number
        if limit is not None and len(events) > limit:
            break
        if most_read is not None and looked > most_read:
            return Page(events, reached, reached.ms)
    return _cut(events, limit)


def _cut(events: list[EventSummary], limit: int | None) -> Page:
    if limit is None or len(events) <= limit:
        return Page(events)
    return Page(events[:limit], events[limit - 1].cursor)


def absent(store: SyncStore, selection: Selection) -> list[EventSummary]:
    """Return the events that the selection names and the store does not have. Only their ids are known."""
    wanted = tuple(dict.fromkeys(selection.ids))
    pipeline = store.redis.pipeline(transaction=False)
    for webhook_id in wanted:
        pipeline.exists(store.keys.event + webhook_id)
    there = zip(wanted, pipeline.execute(), strict=True)
    return [EventSummary(webhook_id) for webhook_id, is_there in there if not is_there]


def _named(store: SyncStore, selection: Selection) -> Iterable[EventSummary] | None:
    """Return the events of a selection by id, by cause, or by states of few events; None for any other selection."""
    ids: Iterable[str] | None = selection.ids or None
    if selection.cause:
        ids = events_with(store, selection.cause)
        if not ids and not store.redis.exists(store.keys.cause + selection.cause):
            raise UnknownCause(f"there is no cause {selection.cause}; `credhook causes` lists them")
        if selection.ids:
            ids = set(selection.ids).intersection(ids)
    candidates: Iterable[tuple[bytes, float]]
    if ids is not None:
        candidates = ((webhook_id.encode(errors="surrogateescape"), 0) for webhook_id in dict.fromkeys(ids))
    else:
        sets = () if selection.resource is not None else selection.state_sets(store.keys)
        if not sets or (selection.limit is not None and sum(map(store.redis.zcard, sets)) > _FEW):
            return None
        candidates = (entry for key in sets for entry in store.redis.zscan_iter(key, count=PAGE))
    events: dict[str, EventSummary] = {}  # Redis may repeat a member, and an event may change its set meanwhile.
    for page in batched(candidates, PAGE):
        arguments = [part for webhook_id, at in page for part in (webhook_id, int(at))]
        for event in _summaries(store.run("select", [_filter(selection), *arguments])):
            # An event leaves its cause once it is done. Some have done so since the search began.
            left_its_cause = selection.cause and event.state == State.DONE
            if (selection.after is None or event.cursor < selection.after) and not left_its_cause:
                events[event.webhook_id] = event
    return events.values()


def _listed(store: SyncStore, selection: Selection) -> Iterator[tuple[list[EventSummary], int, Cursor]]:
    """Find events through the index, newest first, a page at a time.

    Yields:
        The events of the page that match, the number of events that were looked at, and the last of these.
    """
    filter_ = _filter(selection)
    if selection.resource is not None:
        for page in batched(_entries_of_resource(store, selection), PAGE):
            ranges = [str(cursor) for cursor in page for _ in ("newest", "oldest")]
            _, _, events = store.run("list", [filter_, len(page), *ranges])
            yield list(_summaries(events)), len(page), page[-1]
        return
    oldest, newest = selection.span[0], _newest(store, selection)
    size = PAGE if selection.limit is None else min(PAGE, selection.limit + _FIRST_PAGE)
    while True:
        looked, last, events = store.run("list", [filter_, size, newest, oldest])
        if looked:
            yield list(_summaries(events)), looked, Cursor.read(last.decode())
        if looked < size:
            return
        newest, size = f"({last.decode()}", PAGE


def _entries_of_resource(store: SyncStore, selection: Selection) -> list[Cursor]:
    """Return the entries of the selected resource, newest first. Some may be another resource's."""
    score, entries = store.keys.resource_score(selection.resource or ""), list[bytes]()
    for start in itertools.count(0, PAGE):
        page: Any = store.redis.zrange(store.keys.by_resource, score, score, byscore=True, offset=start, num=PAGE)
        entries += page
        if len(page) < PAGE:
            break
    cursors = sorted({Cursor.read(entry.decode()) for entry in entries}, reverse=True)
    return [cursor for cursor in cursors if selection.after is None or cursor < selection.after]


def _newest(store: SyncStore, selection: Selection) -> str:
    """Return where a search by time begins, as XREVRANGE takes it."""
    starts = [] if selection.after is None else [selection.after]
    if selection.until is not None:
        last: Any = store.redis.xrevrange(store.keys.by_time, count=1)
        # After Redis's clock was set back, the times of entries are too late until it has caught up.
        if last and Cursor.read(last[0][0].decode()).ms <= store.clock():
            starts.append(Cursor(selection.span[1] + _LATE_MS))
    return f"({min(starts)}" if starts else "+"


def _filter(selection: Selection) -> str:
    """Return the filter as filter.lua reads it."""
    start, end = selection.span
    wanted: dict[str, Any] = {
        "types": dict.fromkeys(selection.types, True),
        "states": dict.fromkeys(selection.states, True),
        "resource": selection.resource,
        "handler": selection.handler,
    }
    return json.dumps({"from": start, "until": end, **{name: value for name, value in wanted.items() if value}})


def _summaries(rows: Iterable[Any]) -> Iterator[EventSummary]:
    """Read the rows of select.lua and list.lua."""
    for row in rows:
        webhook_id, kind, state, entry = (part.decode(errors="backslashreplace") for part in row)
        yield EventSummary(webhook_id, sys.intern(kind), sys.intern(state), Cursor.read(entry))
