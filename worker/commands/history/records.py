"""The records of events as people read them: times in UTC, handlers by name, null where nothing can be read."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from redis import Redis

from credhook.store import BLAMED, HANDLER, LATEST, ONLY, TRACE, Keys, State, ending
from credhook.store.traces import Traced

#: Records fetched in one round trip.
_PAGE: Final = 500
#: Parts of a lock: webhook-id, fence, attempts, worker's token.
_PARTS_OF_LOCK: Final = 4
#: Digits of the longest number in a record.
_DIGITS: Final = 15


def records(redis: Redis, index: Keys, webhook_ids: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of these events in this order. Skip events that the store does not have.

    Raises:
        RedisError: Redis failed.
    """
    rest = iter(webhook_ids)
    while page := list(islice(rest, _PAGE)):
        pipeline = redis.pipeline(transaction=False)
        for webhook_id in page:
            pipeline.hgetall(raw(index.event + webhook_id))
            pipeline.zscore(index.leases, raw(webhook_id))
        replies = pipeline.execute(raise_on_error=False)
        under_way = _attempts_under_way(redis, index, replies)
        for webhook_id, fields, lease in zip(page, replies[::2], replies[1::2], strict=True):
            if isinstance(fields, Exception):  # Another program wrote this key: it is no hash.
                yield describe(webhook_id, {"state": State.UNREADABLE, "error": "Unreadable: no hash"})
            elif fields:
                text = {text_of(name): text_of(value) for name, value in fields.items()} | under_way.get(webhook_id, {})
                yield describe(webhook_id, text, lease=lease if isinstance(lease, float) else None)


def _attempts_under_way(redis: Redis, index: Keys, replies: Sequence[Any]) -> dict[str, dict[str, str]]:
    """Return the attempts of the events that a worker holds, by webhook-id. Their locks count the current attempt."""
    resources = [
        fields[b"resource"]
        for fields, lease in zip(replies[::2], replies[1::2], strict=True)
        if isinstance(lease, float) and isinstance(fields, dict) and b"resource" in fields
    ]
    if not resources:
        return {}
    pipeline = redis.pipeline(transaction=False)
    pipeline.hmget(index.locks, resources)
    (locks,) = pipeline.execute(raise_on_error=False)
    parts = [text_of(lock).split(" ") for lock in locks if lock] if isinstance(locks, list) else []
    return {part[0]: {"attempts": part[2]} for part in parts if len(part) == _PARTS_OF_LOCK}


def describe(webhook_id: str, fields: dict[str, str], *, lease: float | None = None) -> dict[str, Any]:
    """Return a record as people read it. Pure."""
    received, settled = _number(fields.get("received")), _number(fields.get("settled"))
    ended = {name.removeprefix(HANDLER): ending(how) for name, how in fields.items() if name.startswith(HANDLER)}
    traced = Traced.read(fields.get(TRACE, ""))
    return {
        "webhook_id": webhook_id,
        "type": fields.get("type"),
        "resource_id": fields.get("resource"),
        "state": fields.get("state"),
        "received_at": time_of(received),
        "settled_at": time_of(settled),
        "next_attempt_at": time_of(_number(fields.get("due"))),
        "leased_until": None if lease is None or not 0 < lease <= LATEST else time_of(int(lease)),
        "milliseconds": settled - received if settled is not None and received is not None else None,
        # The record of an event that was settled at its first attempt omits the number, to save memory.
        "attempts": _number(fields.get("attempts", str(int("settled" in fields)))),
        "error": fields.get("error"),
        "only": fields.get(ONLY),
        "backfilled": "backfilled" in fields,
        "handlers": {name: how for name, (how, _) in ended.items()},
        "causes": {name.removeprefix(BLAMED): one for name, one in fields.items() if name.startswith(BLAMED)},
        "duplicates": _number(fields.get("again", "0")),
        "last_duplicate_at": time_of(_number(fields.get("again_at"))),
        "handler_milliseconds": {name: took for name, (_, took) in ended.items() if took is not None},
        "trace_id": traced.trace if traced else None,
    }


def raw(text: str) -> bytes:
    """Return the bytes in Redis. A webhook-id that was read from there has surrogates for bytes that are no UTF-8."""
    return text.encode(errors="surrogateescape")


def text_of(value: bytes) -> str:
    """Return the value as text. Bytes that are no UTF-8 are escaped."""
    return value.decode(errors="backslashreplace")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def time_of(milliseconds: int | None) -> str | None:
    """Return a time in ms since the epoch as text, or None if it is no time."""
    if milliseconds is None or not 0 <= milliseconds <= LATEST:
        return None
    return written(datetime.fromtimestamp(milliseconds / 1000, UTC))


def written(moment: datetime) -> str:
    """Return the time as programs read it: ISO 8601 in UTC, to the millisecond, with a Z at the end."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
