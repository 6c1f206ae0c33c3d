"""Reads the causes of failures, and the events that have a cause, from the store. Functions raise RedisError."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, cast

from redis import Redis

from credhook.store import BLAMED, LATEST, MOST_CAUSES, Keys, State
from credhook.worker.commands.history.records import written

#: Digits of the longest time that can be written.
_DIGITS: Final = 14
#: Records read in one round trip.
_PAGE: Final = 500
#: Longest pause between two attempts, in seconds. causes.lua has the same number.
_LONGEST_WAIT: Final = 604_800
#: States of an event that no longer has a cause.
_OVER: Final = frozenset({State.DONE.value.encode(), None})


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of failures. worker/queue/failure.py decides which failures share one.

    Attributes:
        id: eight hexadecimal digits.
        handler: the handler that failed, `fetch`, or `worker` if processes died.
        error: class and status, if there is a status.
        at: the author's function that failed last.
        open: events that have the cause now and will be tried again.
        given_up: events that have the cause now and are dead or data_gone.
        failures: attempts that it made fail, including those of events that are done now.
        first: time of the first failure.
        last: time of the last failure.
        since: version of credhook that first failed.
        version: version of credhook that failed last.
    """

    id: str
    handler: str
    error: str
    at: str
    open: int
    given_up: int
    failures: int
    first: datetime | None
    last: datetime
    since: str
    version: str

    def as_json(self) -> dict[str, Any]:
        """Return the cause for programs, with times in UTC."""
        times = {"first": self.first and written(self.first), "last": written(self.last)}
        return {**asdict(self), **times}


def causes(redis: Redis, index: Keys, *, retention: int, limit: int = MOST_CAUSES) -> list[Cause]:
    """Return the causes, the latest failure first. `retention`: seconds for which settled events are kept."""
    latest = cast(list[tuple[bytes, float]], redis.zrange(index.causes, 0, limit - 1, desc=True, withscores=True))
    now = int(redis.time()[0]) * 1_000
    forgotten, overdue = now - retention * 1_000, now - max(retention, _LONGEST_WAIT) * 1_000
    pipeline = redis.pipeline(transaction=False)
    for name, _ in latest:
        cause_id = name.decode(errors="replace")
        pipeline.hgetall(index.cause(cause_id))
        pipeline.zcount(index.standing(cause_id), "-inf", f"({-overdue}")
        pipeline.zcount(index.standing(cause_id), forgotten, "+inf")
    replies = pipeline.execute(raise_on_error=False)  # One unreadable cause must not hide the others.
    found = []
    for (name, last), fields, still_open, given_up in zip(
        latest, replies[::3], replies[1::3], replies[2::3], strict=True
    ):
        if isinstance(fields, dict) and fields:
            text = {one.decode(errors="replace"): value.decode(errors="replace") for one, value in fields.items()}
            numbers = [number if isinstance(number, int) else 0 for number in (still_open, given_up)]
            found.append(_cause(name.decode(errors="replace"), text, last, *numbers))
    return found


def _cause(cause_id: str, text: dict[str, str], last: float, still_open: int, given_up: int) -> Cause:
    first = _number(text.get("first", ""))
    return Cause(
        cause_id,
        text.get("who", ""),
        text.get("what", ""),
        text.get("at", ""),
        still_open,
        given_up,
        _number(text.get("failures", "")),
        _moment(first) if first else None,
        _moment(last),
        text.get("since", ""),
        text.get("version", ""),
    )


def standing(redis: Redis, index: Keys, cause_id: str) -> Iterator[str] | None:
    """Return the webhook-ids of the events that have the cause now, or None if there is no such cause."""
    who = redis.hget(index.cause(cause_id), "who")
    if who is None:
        return None
    return _standing(redis, index, cause_id, cast(bytes, who))


def _standing(redis: Redis, index: Keys, cause_id: str, who: bytes) -> Iterator[str]:
    """Yield the events whose records confirm the cause. After a crash the index can hold settled events."""
    members = (member for member, _ in redis.zscan_iter(index.standing(cause_id), count=_PAGE))
    while page := list(islice(members, _PAGE)):
        pipeline = redis.pipeline(transaction=False)
        for member in page:
            pipeline.hmget(index.event.encode() + member, "state", BLAMED.encode() + who)
        for member, record in zip(page, pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(record, list) and record[0] not in _OVER and record[1] == cause_id.encode():
                yield member.decode(errors="surrogateescape")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0


def _moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(min(max(0, milliseconds), LATEST) / 1_000, UTC)
