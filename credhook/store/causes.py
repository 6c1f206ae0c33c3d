"""The causes of failures, read from the records of the events that have them.

A record names its open errors: who failed, and the id of the cause. A cause is described once, in a hash of its own.
A failure changes no count. To count, the records of the events that were retried, given up or set aside are read.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple, cast

from credhook.store import State
from credhook.store.history import number_of, text_of, time_of
from credhook.store.store import SyncStore

#: Records that one script reads.
_PAGE: Final = 500
#: Records of each list that are read to count causes, the latest first. A script of 500 takes 2 ms.
READ_LIMIT: Final = 20_000
_OPEN: Final = {State.ACCEPTED, State.WAITING}


class Blamed(NamedTuple):
    """An event with open errors.

    Attributes:
        is_open: True if it will be tried again.
        at: when it was settled, or last moved while it is open, in ms since the epoch.
        causes: who failed (a handler, the fetch or the worker) → id of the cause.
    """

    webhook_id: str
    is_open: bool
    at: int
    causes: dict[str, str]


class Cause(NamedTuple):
    """A cause of failures. worker/queue/failure.py decides which failures share one.

    Attributes:
        id: eight hexadecimal digits.
        handler: the handler that failed, `fetch`, or `worker` if processes died.
        error: class and status, if there is a status.
        at: the author's function that failed.
        open: events that have the cause now and will be tried again.
        given_up: events that have the cause now and are given up.
        first: when the cause was first seen; None if that is forgotten.
        last: when the last of these events was settled or moved.
        version: the versions of the handler's package and of credhook that failed first.
    """

    id: str
    handler: str
    error: str
    at: str
    open: int
    given_up: int
    first: str | None
    last: str | None
    version: str


def blamed(store: SyncStore, *, limit: int | None = None) -> Iterator[Blamed]:
    """Yield the events with open errors. Read the latest `limit` events of each list, or all."""
    keys, seen = store.keys, set[str]()
    for key in (keys.delayed, keys.dead, *keys.all_unhandled):
        start = 0
        while limit is None or start < limit:
            page = cast(list[bytes], store.redis.zrange(key, start, start + _PAGE - 1, desc=True))
            if not page:
                break
            start += len(page)
            for place, state, at, *errors in store.run("errors", page):
                webhook_id = page[place - 1].decode(errors="surrogateescape")
                if webhook_id in seen:  # It has moved from one list to another, or within its list.
                    continue
                seen.add(webhook_id)
                texts = [text_of(text) for text in errors]
                causes = dict(zip(texts[::2], texts[1::2], strict=True))
                yield Blamed(webhook_id, state.decode() in _OPEN, int(float(at)), causes)


def causes(store: SyncStore) -> tuple[list[Cause], bool]:
    """Return the causes of the open errors, the latest first, and True if all events were read."""
    still_open, given_up, last, who = Counter[str](), Counter[str](), Counter[str](), dict[str, str]()
    for event in blamed(store, limit=READ_LIMIT):
        for name, cause in event.causes.items():
            (still_open if event.is_open else given_up)[cause] += 1
            last[cause] = max(last[cause], event.at)
            who[cause] = name
    ids = sorted(who, key=lambda cause: -last[cause])
    pipeline = store.redis.pipeline(transaction=False)
    for cause in ids:
        pipeline.hgetall(store.keys.cause + cause)
    for key in (store.keys.delayed, store.keys.dead, *store.keys.all_unhandled):
        pipeline.zcard(key)
    replies = pipeline.execute()
    descriptions, sizes = replies[: len(ids)], replies[len(ids) :]
    read = []
    for cause, fields in zip(ids, descriptions, strict=True):
        text = {text_of(name): text_of(value) for name, value in fields.items()}
        described = text.get("who", who[cause]), text.get("what", ""), text.get("at", "")
        counts = still_open[cause], given_up[cause]
        times = time_of(number_of(text.get("first"))), time_of(last[cause])
        read.append(Cause(cause, *described, *counts, *times, text.get("version", "")))
    return read, max(sizes) <= READ_LIMIT


def events_with(store: SyncStore, cause: str) -> list[str]:
    """Return the webhook-ids of all events that have the cause now."""
    return [event.webhook_id for event in blamed(store) if cause in event.causes.values()]
