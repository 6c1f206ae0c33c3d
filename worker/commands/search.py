"""Select events by a command's options, and find or count them, newest first, from the index and their records."""

import difflib
import heapq
import json
import re
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, NamedTuple, Self, cast

import click
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from credhook.events import EVENT_TYPES, is_resource_id
from credhook.settings import StoreSettings
from credhook.store import LATEST_MS, OTHER, Keys, State, lua
from credhook.store.connection import clock
from credhook.store.errors import hint
from credhook.worker.commands.batches import bar, batched
from credhook.worker.commands.history import raw, standing

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
#: Records that one script reads. It blocks Redis for two milliseconds.
PAGE: Final = 500
#: Entries of one index in the first page, and in the longest.
_FIRST_PAGE, _LONGEST_PAGE = 50, 2_000
#: Up to this many events in the wanted states are all read. Beyond that, the event index is searched.
_FEW: Final = 10_000
_FEW_OF_ALL: Final = 200_000

_SELECT: Final = lua.load("select")

#: State and type → number of events.
Counts = Counter[tuple[str, str]]


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
        until = LATEST_MS + 1 if self.until is None else max(0, _milliseconds(self.until))
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


class Candidate(NamedTuple):
    """An event that may match, and its time in the index, in ms."""

    webhook_id: bytes
    time: int


@dataclass(frozen=True, slots=True)
class Page:
    """Events that match, newest first.

    Attributes:
        events: the events.
        after: where the next page begins; None if this is the last.
        looked_back_to: if the search stopped early: the time that it has reached, in ms since the epoch.
    """

    events: list[EventSummary]
    after: Cursor | None = None
    looked_back_to: int | None = None


@contextmanager
def open_store() -> Iterator[tuple[Redis, Keys]]:
    """Open the store that the settings name.

    A failed command is not sent again: if only its reply was lost, the second try would find the work done already.

    Raises:
        click.ClickException: Redis does not answer.
    """
    store = StoreSettings().open_store_sync(retry=Retry(NoBackoff(), 0))
    try:
        store.check_schema(write=False)
        yield store.redis, store.keys
    except ResponseError as error:
        # Redis's own words name no value, but which permission, memory or type is missing.
        reason = str(error).partition("\n")[0]
        raise click.ClickException(f"Redis refuses: {reason}; {hint(error)}") from error
    except RedisError as error:
        raise click.ClickException(f"Redis does not answer ({type(error).__name__}); {hint(error)}") from error
    finally:
        store.redis.close()


def find(redis: Redis, index: Keys, selection: Selection) -> list[EventSummary]:
    """Return all events that match, each once, newest first.

    Raises:
        RedisError: Redis failed.
    """
    return read_page(redis, index, selection).events


def read_page(redis: Redis, index: Keys, selection: Selection, *, patience: int | None = None) -> Page:
    """Return the events that match, up to the limit; with `patience`, look at no more candidates than about so many.

    Raises:
        RedisError: Redis failed.
    """
    limit, found, looked = selection.limit, list[EventSummary](), 0
    candidates, newest_first = _candidates(redis, index, selection, _FEW_OF_ALL if limit is None else _FEW)
    with bar("reading") as advance:
        size = PAGE if limit is None else min(PAGE, limit + _FIRST_PAGE)
        while batch := list(islice(candidates, size)):
            size = PAGE
            found += _summaries(_select(redis, index, selection, batch))
            looked += len(batch)
            advance(len(batch))
            if not newest_first:
                continue
            oldest = batch[-1].time  # Others of that millisecond may follow.
            following = (one for one in found if selection.after is None or one.cursor < selection.after)
            if limit is not None and sum(one.received > oldest for one in following) > limit:
                break
            if patience is not None and looked > patience:
                short = _cut(selection, (one for one in found if one.received > oldest))
                return Page(short.events, Cursor(oldest + 1), oldest + 1)
    # An event leaves its cause once it is done. Some have done so since the search began.
    return _cut(selection, (one for one in found if not selection.cause or one.state != State.DONE))


def count(redis: Redis, index: Keys, selection: Selection, *, retention: int) -> Counts:
    """Count the events that match; settled events are remembered for `retention` seconds.

    Raises:
        RedisError: Redis failed.
    """
    if selection.limit or selection.after or selection.ids or selection.cause:
        return Counter((one.state, one.type) for one in find(redis, index, selection))
    sets = selection.indexes(index)
    if sets:
        return _count(redis, index, selection, _members(redis, sets))
    if selection == Selection(selection.states, selection.types):
        totals = _totals(redis, index, clock(redis) - retention * 1_000)
        return Counter(
            {
                (state, kind): number
                for (state, kind), number in totals.items()
                if (not selection.states or state in selection.states)
                and (not selection.types or kind in selection.types)
            }
        )
    candidates, _ = _candidates(redis, index, selection, 0)
    return _count(redis, index, selection, candidates)


def absent(redis: Redis, index: Keys, selection: Selection) -> list[str]:
    """Return the webhook-ids that the selection names and the store does not have."""
    wanted = tuple(dict.fromkeys(selection.ids))
    pipeline = redis.pipeline(transaction=False)
    for webhook_id in wanted:
        pipeline.exists(index.event + webhook_id)
    return [webhook_id for webhook_id, there in zip(wanted, pipeline.execute(), strict=True) if not there]


def _candidates(redis: Redis, index: Keys, selection: Selection, few: int) -> tuple[Iterator[Candidate], bool]:
    """Return the events that may match, and whether the newest come first.

    Raises:
        click.UsageError: the store does not have the cause.
    """
    named: Iterable[str] | None = selection.ids or None
    if selection.cause:
        of_cause = standing(redis, index, selection.cause)
        if of_cause is None:
            raise click.UsageError(f"there is no cause {selection.cause}; `credhook causes` lists them")
        named = [one for one in of_cause if one in selection.ids] if selection.ids else of_cause
    if named is not None:
        return (Candidate(raw(one), 0) for one in dict.fromkeys(named)), False
    sets = selection.indexes(index)
    if sets:
        pipeline = redis.pipeline(transaction=False)
        for key in sets:
            pipeline.zcard(key)
        if sum(pipeline.execute()) <= few:
            return _members(redis, sets), False
    # An event whose type an older version did not know stands among the others until it is replayed.
    types = (*selection.types, OTHER) if selection.types else (*EVENT_TYPES, OTHER)
    keys = index.event_indexes(types, selection.resource)
    return _newest(redis, keys, *selection.span, page=min(selection.limit or _LONGEST_PAGE, _FIRST_PAGE)), True


def _members(redis: Redis, keys: Iterable[str]) -> Iterator[Candidate]:
    """Yield the members of these sorted sets, each once."""
    seen = set[bytes]()  # Redis may name a member twice while its tables shrink, and an event may change its set.
    for key in keys:
        for member, score in redis.zscan_iter(key, count=PAGE):
            if member not in seen:
                seen.add(member)
                yield Candidate(member, int(score))


def _newest(redis: Redis, keys: Sequence[str], start: int, end: int, *, page: int) -> Iterator[Candidate]:
    """Yield the entries of these indexes from `end`, not included, back to `start`, newest first."""
    pipeline = redis.pipeline(transaction=False)
    for key in keys:
        pipeline.zrange(key, cast(int, f"({end}"), start, desc=True, byscore=True, offset=0, num=page, withscores=True)
    first_pages = zip(keys, pipeline.execute(), strict=True)
    entries = (_entries(redis, key, start, page, first) for key, first in first_pages if first)
    return heapq.merge(*entries, key=lambda one: -one.time)


def _entries(redis: Redis, key: str, start: int, page: int, found: list[tuple[bytes, float]]) -> Iterator[Candidate]:
    """Yield the entries of one index, newest first, a page at a time; `found` is the first page."""
    last, skip = -1.0, 0
    while found:
        yield from (Candidate(member, int(score)) for member, score in found)
        if len(found) < page:
            return
        same = sum(score == found[-1][1] for _, score in found)
        skip = same + (skip if found[-1][1] == last else 0)
        last, page = found[-1][1], min(4 * page, _LONGEST_PAGE)
        more = redis.zrange(key, int(last), start, desc=True, byscore=True, offset=skip, num=page, withscores=True)
        found = cast("list[tuple[bytes, float]]", more)


def _select(
    redis: Redis, index: Keys, selection: Selection, candidates: Iterable[Candidate], *, counting: bool = False
) -> list[Any]:
    start, end = selection.span
    wanted: Mapping[str, Any] = {
        "types": dict.fromkeys(selection.types, True) or None,
        "states": dict.fromkeys(selection.states, True) or None,
        "resource": selection.resource,
        "handler": selection.handler,
        "from": start,
        "until": end,
        "counting": counting,
    }
    arguments = [part for one in candidates for part in one]
    reply = redis.register_script(_SELECT)(keys=[index.prefix], args=[json.dumps(wanted), *arguments])
    return cast("list[Any]", reply)


def _summaries(reply: Sequence[Any]) -> list[EventSummary]:
    parts = [part.decode(errors="surrogateescape") for part in reply]
    return [
        EventSummary(parts[n], sys.intern(_shown(parts[n + 1])), sys.intern(parts[n + 2]), int(parts[n + 3]))
        for n in range(0, len(parts), 4)
    ]


def _shown(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _cut(selection: Selection, found: Iterable[EventSummary]) -> Page:
    """Return the page that begins after the cursor and ends at the limit."""
    unique = {one.webhook_id: one for one in found}.values()
    following = (one for one in unique if selection.after is None or one.cursor < selection.after)
    rest = sorted(following, key=lambda one: one.cursor, reverse=True)
    if selection.limit is None or len(rest) <= selection.limit:
        return Page(rest)
    events = rest[: selection.limit]
    return Page(events, events[-1].cursor)


def _count(redis: Redis, index: Keys, selection: Selection, candidates: Iterable[Candidate]) -> Counts:
    total = Counts()
    with bar("counting") as advance:
        for batch in batched(candidates, PAGE):
            reply = _select(redis, index, selection, batch, counting=True)
            for n in range(0, len(reply), 3):
                total[reply[n].decode(), reply[n + 1].decode(errors="backslashreplace")] += reply[n + 2]
            advance(len(batch))
    return total


def _totals(redis: Redis, index: Keys, before: int) -> Counts:
    """Count all events by state and type without a look at each record.

    Every event since `before`, in ms, is done unless it stands in the sorted set of another state. Most older
    events have expired. Only the rest are read.
    """
    pipeline = redis.pipeline(transaction=False)
    for key in index.event_indexes(EVENT_TYPES):
        pipeline.zcount(key, before, "+inf")
    numbers = cast("list[int]", pipeline.execute())
    each = len(numbers) // len(EVENT_TYPES)
    young = {kind: sum(numbers[n * each : (n + 1) * each]) for n, kind in enumerate(EVENT_TYPES)}
    sets = (index.open, index.dead, *index.all_unhandled, index.quarantined, index.unreadable)
    not_done = Selection(frozenset(State) - {State.DONE})
    total = _count(redis, index, not_done, _members(redis, sets))
    old = Counts()
    with_records = _newest(redis, index.event_indexes(), 0, before, page=_LONGEST_PAGE)
    old = _count(redis, index, Selection(), with_records)
    for kind, number in young.items():
        states = frozenset(State) - {State.DONE, State.QUARANTINED}  # A quarantined event is listed among the others.
        others = sum(total[state, kind] - old[state, kind] for state in states)
        total[State.DONE, kind] = max(0, number - others) + old[State.DONE, kind]
    return +total
