"""Read events and their histories, for programs and for people."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from credhook.store import BLAMED, HANDLER, HISTORY_ENTRIES, LATEST_MS, ONLY, PENDING, TRACE, State, ending, schedule_of
from credhook.store.bulk import batched
from credhook.store.counts import counted
from credhook.store.store import SyncStore
from credhook.tracing import trace_id

#: Records fetched in one round trip.
_PAGE: Final = 500
#: What reclaim.lua says of a worker process that is gone → in words.
_DEATHS: Final = {
    "own": "ended by itself",
    "ended": "was ended",
    "host": "went silent, with its host or cut off from Redis",
}


def records(store: SyncStore, webhook_ids: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of these events in this order. Skip events that the store does not have."""
    for page in batched(webhook_ids, _PAGE):
        pipeline = store.redis.pipeline(transaction=False)
        for webhook_id in page:
            pipeline.hgetall(store.keys.event + webhook_id)
            pipeline.zscore(store.keys.leases, webhook_id)
        replies = pipeline.execute(raise_on_error=False)
        for webhook_id, fields, lease in zip(page, replies[::2], replies[1::2], strict=True):
            if isinstance(fields, Exception):  # Another program wrote this key: it is no hash.
                yield describe(webhook_id, {"state": State.UNREADABLE, "error": "Unreadable: no hash"})
            elif fields:
                text = {text_of(name): text_of(value) for name, value in fields.items()}
                yield describe(webhook_id, text, lease=lease)


def describe(webhook_id: str, fields: dict[str, str], *, lease: float | None = None) -> dict[str, Any]:
    """Return a record as people read it."""
    received, settled = number_of(fields.get("received")), number_of(fields.get("settled"))
    ended = {name.removeprefix(HANDLER): ending(how) for name, how in fields.items() if name.startswith(HANDLER)}
    schedules = {
        name.removeprefix(PENDING): schedule_of(value) for name, value in fields.items() if name.startswith(PENDING)
    }
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
        # Of the handler, or the fetch, that had most. A handler that is done at its first attempt has no schedule.
        "attempts": max([int("settled" in fields), *[schedule.attempts for schedule in schedules.values()]]),
        "schedules": {
            name: {"attempts": attempts, "next_attempt_at": time_of(due) if due and name not in ended else None}
            for name, (attempts, due, _) in schedules.items()
        },
        "lapses": number_of(fields.get("lapses")) or 0,
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
    for waiting in (entry, *entry.get("failures", ()), *entry.get("retries", ())):
        if "wait" in waiting:
            waiting["next_attempt_at"] = time_of(at + waiting.pop("wait"))
    return {"at": time_of(at), **entry}


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the event for people. Times are in UTC.

    `record` is what `credhook events show --json` prints.
    """
    for number, (name, value) in enumerate(heading(record)):
        yield f"{name:<11}{value}".rstrip() + ("" if number else "  (times in UTC)")
    history: Sequence[Mapping[str, Any]] = record["history"]
    if len(history) >= HISTORY_ENTRIES:
        yield "(earlier entries are not kept)"
    for entry in history:
        what, *more = entry_lines(entry)
        yield f"{_shown(entry['at'])}  {what}"
        yield from (" " * 25 + line for line in more)


def heading(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the present state as pairs of name and text."""
    yield "event", record["webhook_id"]
    yield "type", record["type"] or ""
    yield "resource", record["resource_id"] or ""
    settled = f" since {_shown(record['settled_at'])}" if record["settled_at"] else ""
    yield "state", f"{record['state']}{settled}{_after(': ', record['error'])}"
    yield "received", _shown(record["received_at"])
    for conflict in record["conflicts"]:
        came = f"{conflict['type']} {conflict['resource_id']}"
        yield "conflict", f"{_shown(conflict['at'])}, the same id came with {came}"
    for name, field in (("next", "next_attempt_at"), ("held until", "leased_until")):
        if record[field]:
            yield name, _shown(str(record[field]))
    if record["lapses"]:
        yield "lapses", f"{record['lapses']}, claims that no worker has settled"
    yield from _handler_lines(record)
    for name, field in (("waits for", "only"), ("trace", "trace_id")):
        if record[field]:
            yield name, record[field]


def _handler_lines(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines of each handler, then of waiting handlers, of the fetch, and of workers that died."""
    causes, schedules = dict(record["causes"]), dict(record["schedules"])
    for name, how in record["handlers"].items():
        took, attempts = record["handler_milliseconds"].get(name), schedules.pop(name, {}).get("attempts", 1)
        ended = how + ("" if took is None else f" in {took} ms") + (f", attempt {attempts}" if attempts > 1 else "")
        yield "handler", f"{name}: {ended}{_cause_note(causes.pop(name, None))}"
    for name in dict.fromkeys([*schedules, *causes]):
        attempts, at = (schedules.get(name, {}).get(field) for field in ("attempts", "next_attempt_at"))
        ended = "failed" if name in causes else "tried" if attempts else "waits"
        text = f"{ended}{_after(' ', counted(attempts, 'time', 'times') if attempts else '')}"
        text += f"{_after(', next at ', at and _shown(at))}{_cause_note(causes.get(name))}"
        # The fetch and the worker are no handlers.
        yield ("handler", f"{name}: {text}") if "." in name else (name, text)


def entry_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line that says what happened, and a line for each handler."""
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
    yield f"attempt{_after(' by ', entry.get('worker'))}{took}: {state}{error}{due}"
    yield from (f"{name} done in {took} ms" for name, took in entry.get("ran", {}).items())
    yield from (f"{name} skipped" for name in entry.get("skipped", ()))
    for failure in entry.get("failures", ()):
        took, at = _after(" after ", failure.get("ms"), " ms"), _after(" at ", failure.get("at"))
        yield f"{failure['who']} {failure['what']}{took}{at}{_next(failure)}{_cause_note(failure.get('cause'))}"
    for retry in entry.get("retries", ()):
        yield f"{retry['who']} chose to run again: {retry['what']}{_next(retry)}"


def _next(tried: Mapping[str, Any]) -> str:
    """Return the number of an attempt, and when the next one is due."""
    due = tried.get("next_attempt_at")
    return _after(", attempt ", tried.get("attempt")) + _after(", next at ", due and _shown(due))


def _cause_note(cause: object) -> str:
    return f" (cause {cause})" if cause else ""


def _after(before: str, what: object, behind: str = "") -> str:
    return "" if what is None or what == "" else f"{before}{what}{behind}"


def _shown(at: str | None) -> str:
    return at.removesuffix("Z").replace("T", " ") if at else "?"
