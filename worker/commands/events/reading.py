"""The records that a selection is about, read from the ledger."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from heapq import nlargest
from typing import Any, Final

import click
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from credhook.ledger import EVENT, Index, State
from credhook.redis.connection import open_redis_sync
from credhook.settings import LedgerSettings
from credhook.worker.commands.events.batches import bar, batched
from credhook.worker.commands.events.selection import EventSummary, Selection

#: Records fetched in one round trip.
PAGE: Final = 500

_COUNT: Final = re.compile(r"[0-9]{1,15}")
#: Every state, by its name.
STATES: Final = frozenset(state.value for state in State)


@contextmanager
def ledger() -> Iterator[tuple[Redis, Index]]:
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
        yield redis, Index(settings.queue)
    except ResponseError as error:
        # Redis's own words name no value, but which permission, memory or type is missing.
        reason = str(error).partition("\n")[0]
        raise click.ClickException(f"Redis refuses: {reason}") from error
    except RedisError as error:
        raise click.ClickException(f"Redis does not answer ({type(error).__name__}); check REDIS_URL") from error
    finally:
        redis.close()


def raw(text: str) -> bytes:
    """As Redis has it: bytes that are no Unicode are surrogates in a webhook-id that was read from there."""
    return text.encode(errors="surrogateescape")


def find(redis: Redis, index: Index, selection: Selection) -> Iterable[EventSummary]:
    """The events that are meant, each once: the newest first if there is a limit, in no order otherwise.

    Raises:
        RedisError: Redis failed.
    """
    meant = _meant(redis, index, selection)
    return meant if selection.limit is None else nlargest(selection.limit, meant, key=lambda found: found.received)


def _meant(redis: Redis, index: Index, selection: Selection) -> Iterator[EventSummary]:
    seen = set[str]()  # Redis may name a key twice while its tables shrink.
    with bar("reading") as advance:
        for page in batched(_named(redis, index, selection), PAGE):
            fresh = [webhook_id for webhook_id in dict.fromkeys(page) if webhook_id not in seen]
            seen.update(fresh)
            pipeline = redis.pipeline(transaction=False)
            for webhook_id in fresh:
                pipeline.hmget(raw(EVENT + webhook_id), "type", "state", "received", "resource")
            replies = pipeline.execute(raise_on_error=False)
            for webhook_id, values in zip(fresh, replies, strict=True):
                if read := read_record(webhook_id, values):
                    found, resource = read
                    if selection.matches(found, resource):
                        yield found
            advance(len(page))


def read_record(webhook_id: str, values: Any) -> tuple[EventSummary, str] | None:
    """The event, and its resource, of type, state, received and resource as Redis has them. Pure.

    Args:
        webhook_id: the event's.
        values: the reply to HMGET, or its error.

    Returns:
        None if there is no such event. One whose record cannot be read counts as unreadable, whatever it says.

    Raises:
        RedisError: Redis did not answer.
    """
    if isinstance(values, Exception):
        if not isinstance(values, ResponseError) or not str(values).startswith("WRONGTYPE"):
            raise values
        return EventSummary(webhook_id, "", State.UNREADABLE, 0), ""
    if not any(value is not None for value in values):
        return None  # It has expired, or was erased.
    kind, state, received, resource = ((value or b"").decode(errors="backslashreplace") for value in values)
    time = int(received) if _COUNT.fullmatch(received) else None
    sound = kind and state in STATES and values[3] is not None and (time is not None or not received)
    found = EventSummary(webhook_id, sys.intern(kind), sys.intern(state) if sound else State.UNREADABLE, time or 0)
    return found, resource


def _named(redis: Redis, index: Index, selection: Selection) -> Iterator[str]:
    """The webhook-ids of all events that could be meant."""
    if selection.ids:
        yield from selection.ids
    elif indexes := selection.indexes(index):
        for key in indexes:
            for member, _ in redis.zscan_iter(key, count=PAGE):
                yield member.decode(errors="surrogateescape")
    else:
        for key in redis.scan_iter(match=EVENT + "*", count=PAGE):
            yield key.decode(errors="surrogateescape").removeprefix(EVENT)


def absent(redis: Redis, selection: Selection) -> list[str]:
    """The webhook-ids that were asked for by name, and that the ledger does not have."""
    wanted = tuple(dict.fromkeys(selection.ids))
    pipeline = redis.pipeline(transaction=False)
    for webhook_id in wanted:
        pipeline.exists(EVENT + webhook_id)
    return [webhook_id for webhook_id, there in zip(wanted, pipeline.execute(), strict=True) if not there]
