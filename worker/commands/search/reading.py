"""The events that a selection is about, read from the ledger, the newest first."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

import click
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from credhook.settings import LedgerSettings
from credhook.store import LATEST, Keys, State
from credhook.store.connection import open_redis_sync
from credhook.store.hints import hint
from credhook.worker.commands.history.causes import standing
from credhook.worker.commands.history.records import raw
from credhook.worker.commands.search.batches import bar
from credhook.worker.commands.search.search import Candidate, Search, clock, first_span, lengths, summaries
from credhook.worker.commands.search.selection import Cursor, EventSummary, Selection
from credhook.worker.queue.rounds import last_whole
from credhook.worker.queue.upkeep import list_all

#: Records fetched in one round trip.
PAGE: Final = 500
#: Events of the wanted states up to which all of them are read, rather than what is listed looked through for them.
FEW: Final = 10_000
#: The same where no page of them is wanted but all: a look through a million that are listed takes twenty seconds.
FEW_OF_ALL: Final = 200_000
#: Milliseconds by which a clock that was set may make an event look younger than its last move.
_CLOCK_SET: Final = 3_600_000


@contextmanager
def ledger() -> Iterator[tuple[Redis, Keys]]:
    """The ledger that the settings name.

    A failed command is not sent again: a reply that was lost would make what this command has just done look as if
    somebody else had.

    Raises:
        click.ClickException: Redis does not answer.
    """
    settings = LedgerSettings()
    redis = open_redis_sync(settings.redis_url.get_secret_value(), retry=Retry(NoBackoff(), 0))
    try:
        redis.ping()
        yield redis, Keys(settings.queue)
    except ResponseError as error:
        # Redis's own words name no value, but which permission, memory or type is missing.
        reason = str(error).partition("\n")[0]
        raise click.ClickException(f"Redis refuses: {reason}; {hint(error)}") from error
    except RedisError as error:
        raise click.ClickException(f"Redis does not answer ({type(error).__name__}); {hint(error)}") from error
    finally:
        redis.close()


@dataclass(frozen=True, slots=True)
class Page:
    """Events that are meant, the newest first.

    Attributes:
        events: these.
        after: where the next page begins; None if there is none.
        looked_back_to: if the page is short since too much was looked at: to which time, in ms since the epoch.
    """

    events: list[EventSummary]
    after: Cursor | None = None
    looked_back_to: int | None = None


def find(redis: Redis, index: Keys, selection: Selection) -> list[EventSummary]:
    """All events that are meant, each once, the newest first.

    Raises:
        RedisError: Redis failed.
    """
    return read_page(redis, index, selection).events


def read_page(redis: Redis, index: Keys, selection: Selection, *, patience: int | None = None) -> Page:
    """The events that are meant, up to the limit; with `patience`, after so many were looked at what was found by then.

    Raises:
        RedisError: Redis failed.
    """
    with bar("reading") as advance:
        if (ids := _named(redis, index, selection)) is not None:
            search = Search(redis, index, selection)
            named = (Candidate(raw(one), 0) for one in dict.fromkeys(ids))
            events = itertools.chain.from_iterable(map(summaries, search.among(named)))
            # An event leaves its cause once it is done: that has happened to these since.
            return _cut(selection, (one for one in events if not selection.cause or one.state != State.DONE))
        sets = present_sets(redis, selection.indexes(index))
        few = FEW_OF_ALL if selection.limit is None else FEW
        if selection.indexes(index) and sum(sets.values()) <= few:
            search = Search(redis, index, selection)
            return _cut(selection, itertools.chain.from_iterable(map(summaries, search.among(members(redis, sets)))))
        list_what_is_missing(redis, index)
        # What cannot be read may not say when it came: it is found where the reconciler has set it aside.
        aside = list(members(redis, present_sets(redis, (index.unreadable,))))
        unread = list(itertools.chain.from_iterable(map(summaries, Search(redis, index, selection).among(aside))))
        search = Search(redis, index, selection, sets=list(sets), skip=(one.webhook_id for one in unread))
        top = min([clock(redis), *([_last_move(redis, sets) + _CLOCK_SET] if sets else [])])
        listed = lengths(redis, index, selection.types, selection.resource)
        first = first_span(redis, index, listed, min(top, selection.span[1]), _wanted(selection, sets, listed))
        found: list[EventSummary] = []
        looked = 0
        for span in search.through(list(listed), top, first):
            found += (one for one in unread if span.start <= one.received < span.end)
            found += summaries(span.reply)
            looked += span.looked
            advance(span.looked)
            if selection.limit is not None and len(_following(selection, found)) > selection.limit:
                break
            if patience is not None and looked > patience and span.start > selection.span[0]:
                short = _cut(selection, found)
                return Page(short.events, Cursor(span.start), span.start)
        return _cut(selection, found)


def _wanted(selection: Selection, sets: Mapping[str, int], listed: Mapping[str, int]) -> int:
    """How many of the listed events are looked at until the limit's number is found, as far as is known. Pure."""
    total = sum(listed.values())
    if selection.limit is None or selection.resource:
        return total
    return selection.limit * total // sum(sets.values()) if sets else selection.limit


def _named(redis: Redis, index: Keys, selection: Selection) -> Iterable[str] | None:
    """The webhook-ids of all events that could be meant, where they are known by name or by their cause.

    Raises:
        click.UsageError: there is no such cause.
    """
    if not selection.cause:
        return selection.ids or None
    of_cause = standing(redis, index, selection.cause)
    if of_cause is None:
        raise click.UsageError(f"there is no cause {selection.cause}; `credhook causes` lists them")
    return [one for one in of_cause if one in selection.ids] if selection.ids else of_cause


def _cut(selection: Selection, found: Iterable[EventSummary]) -> Page:
    """The page that begins after the cursor and ends at the limit. Pure."""
    rest = sorted(_following(selection, found), key=lambda one: one.cursor, reverse=True)
    if selection.limit is None or len(rest) <= selection.limit:
        return Page(rest)
    events = rest[: selection.limit]
    return Page(events, events[-1].cursor)


def _following(selection: Selection, found: Iterable[EventSummary]) -> list[EventSummary]:
    unique = {one.webhook_id: one for one in found}.values()
    return [one for one in unique if selection.after is None or one.cursor < selection.after]


def present_sets(redis: Redis, keys: Iterable[str]) -> dict[str, int]:
    """Those of the sorted sets that are there, and are such → how many members they have."""
    wanted = list(keys)
    pipeline = redis.pipeline(transaction=False)
    for key in wanted:
        pipeline.zcard(key)
    replies = pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
            raise reply
    return {key: reply for key, reply in zip(wanted, replies, strict=True) if isinstance(reply, int) and reply}


def members(redis: Redis, keys: Iterable[str]) -> Iterator[Candidate]:
    """What these sorted sets hold, each event once."""
    seen = set[bytes]()  # Redis may name one twice while its tables shrink.
    for key in keys:
        for member, score in redis.zscan_iter(key, count=PAGE):
            if member not in seen:
                seen.add(member)
                yield Candidate(member, _time(score))


def _last_move(redis: Redis, sets: Iterable[str]) -> int:
    """When the last of the members of these sorted sets came there, in ms."""
    pipeline = redis.pipeline(transaction=False)
    for key in sets:
        pipeline.zrange(key, LATEST, 0, desc=True, byscore=True, offset=0, num=1, withscores=True)
    replies = cast(list[list[tuple[bytes, float]]], pipeline.execute())
    return int(max((score for reply in replies for _, score in reply), default=0))


def _time(score: float) -> int:
    """What a score says, in ms; 0 where somebody else has written what is no time."""
    return int(score) if 0 <= score <= LATEST else 0


def list_what_is_missing(redis: Redis, index: Keys) -> None:
    """See to it, once for all commands, that what an older version has accepted is listed."""
    if last_whole(redis, index) is not None:
        return
    with bar("listing") as advance:
        listed = sum(list_all(redis, index, looked=advance))
    if listed:
        click.echo(f"listed {listed} events that an older version had accepted; that was needed once", err=True)


def absent(redis: Redis, index: Keys, selection: Selection) -> list[str]:
    """The webhook-ids that were asked for by name, and that the ledger does not have."""
    wanted = tuple(dict.fromkeys(selection.ids))
    pipeline = redis.pipeline(transaction=False)
    for webhook_id in wanted:
        pipeline.exists(index.event + webhook_id)
    return [webhook_id for webhook_id, there in zip(wanted, pipeline.execute(), strict=True) if not there]
