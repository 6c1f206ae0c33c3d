"""Read events, their histories and the causes of failures from the store, for programs and for people."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, cast

from redis import Redis

from credhook.store import (
    BLAMED,
    HANDLER,
    HISTORY_ENTRIES,
    LATEST_MS,
    MOST_CAUSES,
    ONLY,
    TRACE,
    Keys,
    State,
    ending,
)
from credhook.store.connection import clock
from credhook.tracing import trace_id

#: Records fetched in one round trip.
_PAGE: Final = 500
#: Parts of a lock: webhook-id, fence, attempts, worker's token.
_PARTS_OF_LOCK: Final = 4
#: Digits of the longest number in a record.
_DIGITS: Final = 15
#: Longest pause between two attempts, in seconds. causes.lua has the same number.
_LONGEST_WAIT: Final = 604_800
#: States of an event that no longer has a cause.
_OVER: Final = frozenset({State.DONE.value.encode(), None})
#: What reclaim.lua says of a worker process that is gone → in words.
_DEATHS: Final = {"1": "ended by itself", "0": "was ended", "host": "went silent, with its host or cut off from Redis"}


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
    return {
        "webhook_id": webhook_id,
        "type": fields.get("type"),
        "resource_id": fields.get("resource"),
        "state": fields.get("state"),
        "received_at": time_of(received),
        "settled_at": time_of(settled),
        "next_attempt_at": time_of(_number(fields.get("due"))),
        "leased_until": None if lease is None or not 0 < lease <= LATEST_MS else time_of(int(lease)),
        "milliseconds": settled - received if settled is not None and received is not None else None,
        # The record of an event that was settled at its first attempt omits the number, to save memory.
        "attempts": _number(fields.get("attempts", str(int("settled" in fields)))),
        "error": fields.get("error"),
        "only": fields.get(ONLY),
        "backfilled": "backfilled" in fields,
        "handlers": {name: how for name, (how, _) in ended.items()},
        "causes": {name.removeprefix(BLAMED): cause for name, cause in fields.items() if name.startswith(BLAMED)},
        "duplicates": _number(fields.get("again", "0")),
        "last_duplicate_at": time_of(_number(fields.get("again_at"))),
        "handler_milliseconds": {name: took for name, (_, took) in ended.items() if took is not None},
        "trace_id": trace_id(fields.get(TRACE, "")),
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
    if milliseconds is None or not 0 <= milliseconds <= LATEST_MS:
        return None
    return written(datetime.fromtimestamp(milliseconds / 1000, UTC))


def written(moment: datetime) -> str:
    """Return the time as programs read it: ISO 8601 in UTC, to the millisecond, with a Z at the end."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def history_of(redis: Redis, index: Keys, webhook_id: bytes) -> dict[str, Any]:
    """Return what has happened to an event, oldest first, and the deliveries that contradict it.

    Returns:
        `history`, a list of objects with `at` and what happened then, and `conflicts`, the deliveries that came with
        another type or resource. Unreadable entries are left out.

    Raises:
        RedisError: Redis failed.
    """
    pipeline = redis.pipeline(transaction=False)
    pipeline.lrange(index.history.encode() + webhook_id, 0, -1)
    pipeline.hgetall(index.conflict.encode() + webhook_id)
    entries, conflicts = pipeline.execute(raise_on_error=False)
    history = [entry for one in entries if (entry := _read(one))] if isinstance(entries, list) else []
    came = conflicts.items() if isinstance(conflicts, dict) else ()
    return {"history": history, "conflicts": [_conflict(text_of(what), text_of(when)) for what, when in came]}


def _read(line: bytes) -> dict[str, Any] | None:
    when, _, what = line.partition(b" ")
    try:
        entry = json.loads(what)
        at = time_of(int(when))
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or at is None:
        return None
    for name in ("began", "wait"):  # Another program may have written anything.
        if not isinstance(entry.get(name, 0), int):
            return None
    if "began" in entry:
        entry["milliseconds"] = int(when) - entry["began"]
        entry["began"] = time_of(entry["began"])
    if "wait" in entry:
        entry["next_attempt_at"] = time_of(int(when) + entry.pop("wait"))
    return {"at": at, **entry}


def _conflict(what: str, when: str) -> dict[str, Any]:
    kind, _, resource = what.partition(" ")
    return {"at": time_of(int(when)) if when.isdecimal() else None, "type": kind, "resource_id": resource}


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the event for people. Times are in UTC. Pure.

    `record` is what `credhook events show --json` prints.
    """
    for number, (name, said) in enumerate(heading(record)):
        yield f"{name:<10}{said}".rstrip() + ("" if number else "  (times in UTC)")
    history: Sequence[Mapping[str, Any]] = record["history"]
    if history:
        yield ""
    if len(history) >= HISTORY_ENTRIES:
        yield "(earlier entries are not kept)"
    for entry in history:
        what, *more = entry_lines(entry)
        yield f"{_shown(entry['at'])}  {what}"
        yield from (" " * 25 + line for line in more)


def heading(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the present state as pairs of name and text. Pure."""
    yield "event", record["webhook_id"]
    yield "type", record["type"] or ""
    yield "resource", record["resource_id"] or ""
    settled = f" since {_shown(record['settled_at'])}" if record["settled_at"] else ""
    yield "state", f"{record['state']}{settled}{_after(': ', record['error'])}"
    again = f", and {record['duplicates']} more times, last at {_shown(record['last_duplicate_at'])}"
    yield "received", _shown(record["received_at"]) + (again if record["duplicates"] else "")
    for conflict in record["conflicts"]:
        came = f"{conflict['type']} {conflict['resource_id']}"
        yield "conflict", f"{_shown(conflict['at'])}, the same id came with {came}"
    if record["attempts"]:
        yield "attempts", str(record["attempts"])
    for at, what in (("next_attempt_at", "next"), ("leased_until", "held until")):
        if record[at]:
            yield what, _shown(record[at])
    causes = dict(record["causes"])
    for name, how in record["handlers"].items():
        took = record["handler_milliseconds"].get(name)
        ended = how + ("" if took is None else f" in {took} ms")
        yield "handler", f"{name}: {ended}{_cause_note(causes.pop(name, None))}"
    for name, cause in causes.items():
        yield "handler" if "." in name else name, f"{name if '.' in name else ''} failed{_cause_note(cause)}".strip()
    if record["only"]:
        yield "waits for", record["only"]
    if record["trace_id"]:
        yield "trace", record["trace_id"]


def entry_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line that says what happened, and a line for each handler. Pure."""
    replayed = entry.get("replayed")
    if isinstance(replayed, dict):
        handler = _after(", handler ", replayed.get("handler"))
        yield f"replayed{_after(' by ', replayed.get('by'))}{handler}{', due at once' if replayed.get('now') else ''}"
        return
    if "died" in entry:
        beside = f", with {entry['beside']} other events under way" if entry.get("beside") else ""
        yield f"its worker {_DEATHS.get(str(entry['died']), 'died')}{beside}{_cause_note(entry.get('cause'))}"
        return
    state = "handed back" if entry.get("state") == "accepted" else entry.get("state", "")
    took = _after(" in ", entry.get("milliseconds"), " ms")
    due = f", next at {_shown(entry['next_attempt_at'])}" if entry.get("next_attempt_at") else ""
    error = _after(": ", entry.get("error"))
    yield f"attempt {entry.get('attempt', '')}{_after(' by ', entry.get('worker'))}{took}: {state}{error}{due}"
    yield from _handlers(entry)


def _handlers(entry: Mapping[str, Any]) -> Iterator[str]:
    ran, skipped, failures = entry.get("ran"), entry.get("skipped"), entry.get("failures")
    for name, took in ran.items() if isinstance(ran, dict) else ():
        yield f"{name} done in {took} ms"
    for name in skipped if isinstance(skipped, list) else ():
        yield f"{name} skipped"
    for failure in failures if isinstance(failures, list) else ():
        if isinstance(failure, dict):
            took = _after(" after ", failure.get("ms"), " ms")
            at = _after(" at ", failure.get("at"))
            yield f"{failure.get('who', '')} {failure.get('what', '')}{took}{at}{_cause_note(failure.get('cause'))}"


def _cause_note(cause: object) -> str:
    return f" (cause {cause})" if cause else ""


def _after(before: str, what: object, behind: str = "") -> str:
    return "" if what is None or what == "" else f"{before}{what}{behind}"


def _shown(at: str | None) -> str:
    """Return a time as a person reads it, to the millisecond."""
    return at.removesuffix("Z").replace("T", " ") if at else "?"


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
    now = clock(redis)
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
            text = {field.decode(errors="replace"): value.decode(errors="replace") for field, value in fields.items()}
            numbers = [number if isinstance(number, int) else 0 for number in (still_open, given_up)]
            found.append(_cause_of(name.decode(errors="replace"), text, last, *numbers))
    return found


def _cause_of(cause_id: str, text: dict[str, str], last: float, still_open: int, given_up: int) -> Cause:
    first = _number(text.get("first"))
    return Cause(
        cause_id,
        text.get("who", ""),
        text.get("what", ""),
        text.get("at", ""),
        still_open,
        given_up,
        _number(text.get("failures")) or 0,
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


def _moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(min(max(0, milliseconds), LATEST_MS) / 1_000, UTC)
