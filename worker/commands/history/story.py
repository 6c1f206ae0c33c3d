"""The story of one event: what scripts have written of it (credhook/store/story.lua), for programs and for people."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from redis import Redis

from credhook.store import MOST_TOLD, Keys
from credhook.worker.commands.history.records import text_of, time_of

#: What reclaim.lua says of a worker process that is gone → in words.
_DEATHS: Final = {"1": "ended by itself", "0": "was ended", "host": "went silent, with its host or cut off from Redis"}


def story_of(redis: Redis, index: Keys, webhook_id: bytes) -> dict[str, Any]:
    """Return what has happened to an event, oldest first, and the deliveries that contradict it.

    Returns:
        `story`, a list of objects with `at` and what happened then, and `conflicts`, the deliveries that came with
        another type or resource. Unreadable entries are left out.

    Raises:
        RedisError: Redis failed.
    """
    pipeline = redis.pipeline(transaction=False)
    pipeline.lrange(index.story.encode() + webhook_id, 0, -1)
    pipeline.hgetall(index.conflict.encode() + webhook_id)
    entries, conflicts = pipeline.execute(raise_on_error=False)
    told = [entry for one in entries if (entry := _read(one))] if isinstance(entries, list) else []
    came = conflicts.items() if isinstance(conflicts, dict) else ()
    return {"story": told, "conflicts": [_conflict(text_of(what), text_of(when)) for what, when in came]}


def _read(entry: bytes) -> dict[str, Any] | None:
    when, _, what = entry.partition(b" ")
    try:
        told = json.loads(what)
        at = time_of(int(when))
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or at is None:
        return None
    for name in ("began", "wait"):  # Another program may have written anything.
        if not isinstance(told.get(name, 0), int):
            return None
    if "began" in told:
        told["milliseconds"] = int(when) - told["began"]
        told["began"] = time_of(told["began"])
    if "wait" in told:
        told["next_attempt_at"] = time_of(int(when) + told.pop("wait"))
    return {"at": at, **told}


def _conflict(what: str, when: str) -> dict[str, Any]:
    kind, _, resource = what.partition(" ")
    return {"at": time_of(int(when)) if when.isdecimal() else None, "type": kind, "resource_id": resource}


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the event for people. Times are in UTC. Pure.

    `record` is what `credhook events show --json` prints.
    """
    for number, (name, said) in enumerate(heading(record)):
        yield f"{name:<10}{said}".rstrip() + ("" if number else "  (times in UTC)")
    told: Sequence[Mapping[str, Any]] = record["story"]
    if told:
        yield ""
    if len(told) >= MOST_TOLD:
        yield "(what happened before is not kept)"
    for entry in told:
        what, *more = told_of(entry)
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
        yield "handler", f"{name}: {ended}{_cause(causes.pop(name, None))}"
    for name, cause in causes.items():
        yield "handler" if "." in name else name, f"{name if '.' in name else ''} failed{_cause(cause)}".strip()
    if record["only"]:
        yield "waits for", record["only"]
    if record["trace_id"]:
        yield "trace", record["trace_id"]


def told_of(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line that says what happened, and a line for each handler. Pure."""
    replayed = entry.get("replayed")
    if isinstance(replayed, dict):
        handler = _after(", handler ", replayed.get("handler"))
        yield f"replayed{_after(' by ', replayed.get('by'))}{handler}{', due at once' if replayed.get('now') else ''}"
        return
    if "died" in entry:
        beside = f", with {entry['beside']} other events under way" if entry.get("beside") else ""
        yield f"its worker {_DEATHS.get(str(entry['died']), 'died')}{beside}{_cause(entry.get('cause'))}"
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
            yield f"{failure.get('who', '')} {failure.get('what', '')}{took}{at}{_cause(failure.get('cause'))}"


def _cause(cause: object) -> str:
    return f" (cause {cause})" if cause else ""


def _after(before: str, what: object, behind: str = "") -> str:
    return "" if what is None or what == "" else f"{before}{what}{behind}"


def _shown(at: str | None) -> str:
    """Return a time as a person reads it, to the millisecond."""
    return at.removesuffix("Z").replace("T", " ") if at else "?"
