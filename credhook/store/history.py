"""Read events and their histories, for programs and for people."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from credhook.store import BLAMED, HANDLER, HISTORY_ENTRIES, LATEST_MS, ONLY, TRACE, State, ending
from credhook.store.bulk import batched
from credhook.store.store import SyncStore
from credhook.tracing import trace_id

#: Records fetched in one round trip.
_PAGE: Final = 500
#: What reclaim.lua says of a worker process that is gone → in words.
_DEATHS: Final = {"1": "ended by itself", "0": "was ended", "host": "went silent, with its host or cut off from Redis"}


def records(store: SyncStore, webhook_ids: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of these events in this order. Skip events that the store does not have."""
    for page in batched(webhook_ids, _PAGE):
        pipeline = store.redis.pipeline(transaction=False)
        for webhook_id in page:
            pipeline.hgetall(store.keys.event + webhook_id)
            pipeline.zscore(store.keys.leases, webhook_id)
        replies = pipeline.execute(raise_on_error=False)
        attempts = _attempts_under_way(store, replies)
        for webhook_id, fields, lease in zip(page, replies[::2], replies[1::2], strict=True):
            if isinstance(fields, Exception):  # Another program wrote this key: it is no hash.
                yield describe(webhook_id, {"state": State.UNREADABLE, "error": "Unreadable: no hash"})
            elif fields:
                text = {text_of(name): text_of(value) for name, value in fields.items()}
                yield describe(webhook_id, text | attempts.get(webhook_id, {}), lease=lease)


def _attempts_under_way(store: SyncStore, replies: Sequence[Any]) -> dict[str, dict[str, str]]:
    """Return the attempts of the events that a worker holds, by webhook-id. Their locks count the current attempt."""
    resources = [
        fields[b"resource"]
        for fields, lease in zip(replies[::2], replies[1::2], strict=True)
        if lease is not None and isinstance(fields, dict) and b"resource" in fields
    ]
    locks: Any = store.redis.hmget(store.keys.locks, resources) if resources else []
    parts = [lock.decode().rsplit(" ", 3) for lock in locks if lock]
    # A lock of fence 0 is kept for an event whose worker has died, and counts none.
    return {webhook_id: {"attempts": attempts} for webhook_id, fence, attempts, _ in parts if fence != "0"}


def describe(webhook_id: str, fields: dict[str, str], *, lease: float | None = None) -> dict[str, Any]:
    """Return a record as people read it. Pure."""
    received, settled = number_of(fields.get("received")), number_of(fields.get("settled"))
    ended = {name.removeprefix(HANDLER): ending(how) for name, how in fields.items() if name.startswith(HANDLER)}
    return {
        "webhook_id": webhook_id,
        "type": fields.get("type"),
        "resource_id": fields.get("resource"),
        "state": fields.get("state"),
        "received_at": time_of(received),
        "settled_at": time_of(settled),
        "next_attempt_at": time_of(number_of(fields.get("due"))),
        "leased_until": None if lease is None else time_of(int(lease)),
        "milliseconds": settled - received if settled is not None and received is not None else None,
        # The record of an event that was settled at its first attempt omits the number, to save memory.
        "attempts": number_of(fields.get("attempts", str(int("settled" in fields)))),
        "error": fields.get("error"),
        "only": fields.get(ONLY),
        "backfilled": "backfilled" in fields,
        "handlers": {name: how for name, (how, _) in ended.items()},
        "causes": {name.removeprefix(BLAMED): cause for name, cause in fields.items() if name.startswith(BLAMED)},
        "handler_milliseconds": {name: took for name, (_, took) in ended.items() if took is not None},
        "trace_id": trace_id(fields.get(TRACE, "")),
    }


def text_of(value: bytes) -> str:
    """Return the value as text. Bytes that are no UTF-8 are escaped."""
    return value.decode(errors="backslashreplace")


def number_of(text: str | None) -> int | None:
    """Return the number, or None if the text is not one."""
    return int(text) if text and text.isdecimal() else None


def time_of(milliseconds: int | None) -> str | None:
    """Return a time in ms since the epoch as text, or None if it is no time."""
    if milliseconds is None or not 0 <= milliseconds <= LATEST_MS:
        return None
    return written(datetime.fromtimestamp(milliseconds / 1000, UTC))


def written(moment: datetime) -> str:
    """Return the time as programs read it: ISO 8601 in UTC, to the millisecond, with a Z at the end."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def event_with_history(store: SyncStore, webhook_id: str) -> dict[str, Any] | None:
    """Return an event's record, what has happened to it, and the deliveries that contradict it.

    Returns:
        The record with `history`, a list of objects with `at` and what happened then, oldest first, and `conflicts`,
        the deliveries that came with another type or resource. None if the store does not have the event.
    """
    record = next(records(store, [webhook_id]), None)
    if record is None:
        return None
    pipeline = store.redis.pipeline(transaction=False)
    pipeline.lrange(store.keys.history + webhook_id, 0, -1)
    pipeline.hgetall(store.keys.conflict + webhook_id)
    entries, conflicts = pipeline.execute()
    came = [(text_of(what).partition(" "), int(when)) for what, when in conflicts.items()]
    return record | {
        "history": [_entry(line) for line in entries],
        "conflicts": [{"at": time_of(at), "type": kind, "resource_id": resource} for (kind, _, resource), at in came],
    }


def _entry(line: bytes) -> dict[str, Any]:
    when, _, what = line.partition(b" ")
    at, entry = int(when), json.loads(what)
    if "began" in entry:
        entry["milliseconds"] = at - entry["began"]
        entry["began"] = time_of(entry["began"])
    if "wait" in entry:
        entry["next_attempt_at"] = time_of(at + entry.pop("wait"))
    return {"at": time_of(at), **entry}


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the event for people. Times are in UTC. Pure.

    `record` is what `credhook events show --json` prints.
    """
    for number, (name, said) in enumerate(heading(record)):
        yield f"{name:<11}{said}".rstrip() + ("" if number else "  (times in UTC)")
    history: Sequence[Mapping[str, Any]] = record["history"]
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
    yield "received", _shown(record["received_at"])
    for conflict in record["conflicts"]:
        came = f"{conflict['type']} {conflict['resource_id']}"
        yield "conflict", f"{_shown(conflict['at'])}, the same id came with {came}"
    for name, field in (("attempts", "attempts"), ("next", "next_attempt_at"), ("held until", "leased_until")):
        if record[field]:
            yield name, _shown(str(record[field]))
    causes = dict(record["causes"])
    for name, how in record["handlers"].items():
        took = record["handler_milliseconds"].get(name)
        ended = how + ("" if took is None else f" in {took} ms")
        yield "handler", f"{name}: {ended}{_cause_note(causes.pop(name, None))}"
    for name, cause in causes.items():
        failed = f"failed{_cause_note(cause)}"  # The fetch and the worker are no handlers.
        yield ("handler", f"{name} {failed}") if "." in name else (name, failed)
    for name, field in (("waits for", "only"), ("trace", "trace_id")):
        if record[field]:
            yield name, record[field]


def entry_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line that says what happened, and a line for each handler. Pure."""
    if "replayed" in entry:
        replayed = entry["replayed"]
        handler = _after(", handler ", replayed.get("handler"))
        how = ", due at once" if replayed.get("now") else ", with renamed handlers" if replayed.get("renamed") else ""
        yield f"replayed{_after(' by ', replayed.get('by'))}{handler}{how}"
        return
    if "died" in entry:
        beside = f", other events under way: {entry['beside']}" if entry.get("beside") else ""
        yield f"its worker {_DEATHS.get(str(entry['died']), 'died')}{beside}{_cause_note(entry.get('cause'))}"
        return
    state = "handed back" if entry["state"] == "accepted" else entry["state"]
    due = f", next at {_shown(entry['next_attempt_at'])}" if "next_attempt_at" in entry else ""
    took, error = _after(" in ", entry.get("milliseconds"), " ms"), _after(": ", entry.get("error"))
    yield f"attempt {entry['attempt']}{_after(' by ', entry.get('worker'))}{took}: {state}{error}{due}"
    yield from (f"{name} done in {took} ms" for name, took in entry.get("ran", {}).items())
    yield from (f"{name} skipped" for name in entry.get("skipped", ()))
    for failure in entry.get("failures", ()):
        took, at = _after(" after ", failure.get("ms"), " ms"), _after(" at ", failure.get("at"))
        yield f"{failure['who']} {failure['what']}{took}{at}{_cause_note(failure.get('cause'))}"


def _cause_note(cause: object) -> str:
    return f" (cause {cause})" if cause else ""


def _after(before: str, what: object, behind: str = "") -> str:
    return "" if what is None or what == "" else f"{before}{what}{behind}"


def _shown(at: str | None) -> str:
    return at.removesuffix("Z").replace("T", " ") if at else "?"
