"""Finds and counts the events of a selection, newest first, in the event index and the records."""

import heapq
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import click
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from credhook.events import EVENT_TYPES
from credhook.settings import LedgerSettings
from credhook.store import OTHER, Keys, State, lua
from credhook.store.connection import check_schema, clock, open_redis_sync
from credhook.store.hints import hint
from credhook.worker.commands.history.causes import standing
from credhook.worker.commands.history.records import raw
from credhook.worker.commands.search.batches import bar, batched
from credhook.worker.commands.search.selection import Cursor, EventSummary, Selection

#: Records that one script reads. It blocks Redis for two milliseconds.
PAGE: Final = 500
#: Entries of one index in the first page, and in the longest.
_FIRST_PAGE, _LONGEST_PAGE = 50, 2_000
#: Up to this many events in the wanted states are all read. Beyond that, the event index is searched.
_FEW: Final = 10_000
_FEW_OF_ALL: Final = 200_000

_SELECT: Final = lua.load("select.lua")

#: State and type → number of events.
Counts = Counter[tuple[str, str]]


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
def ledger() -> Iterator[tuple[Redis, Keys]]:
    """Open the store that the settings name.

    A failed command is not sent again: if only its reply was lost, the second try would find the work done already.

    Raises:
        click.ClickException: Redis does not answer.
    """
    settings = LedgerSettings()
    redis = open_redis_sync(settings.redis_url.get_secret_value(), retry=Retry(NoBackoff(), 0))
    try:
        index = Keys(settings.queue)
        check_schema(redis, index, write=False)
        yield redis, index
    except ResponseError as error:
        # Redis's own words name no value, but which permission, memory or type is missing.
        reason = str(error).partition("\n")[0]
        raise click.ClickException(f"Redis refuses: {reason}; {hint(error)}") from error
    except RedisError as error:
        raise click.ClickException(f"Redis does not answer ({type(error).__name__}); {hint(error)}") from error
    finally:
        redis.close()


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
    events have expired. Those that have not are read.
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
