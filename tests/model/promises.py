"""What must be true of Redis, compared with the oracle: records, lists, places of events, and expiries."""

from collections.abc import Mapping
from typing import Any, Final, cast

from model.oracle import OPEN, RETENTION_MS, Event, Fields, Oracle, Schedule
from model.scripted_store import ScriptedStore

from credhook.events import URGENT
from credhook.store import HANDLER, ONLY, PENDING, PROGRESS, State, schedule_of
from credhook.store.job import job_id
from support.store.accepting import values

#: Keys that never expire, and keys that a round of the sweeper writes; see the table in credhook/store/__init__.py.
_LASTING: Final = ("erasures", "mark", "schema", "locks", "arrivals", "sweeper", "traffic:")
_LISTED: Final = {
    "dead": {State.DEAD, State.DATA_GONE},
    "quarantined": {State.QUARANTINED},
    "unhandled": {State.UNHANDLED},
    "open": OPEN,
}
_TEXTS: Final = {"type", "resource", "state", "holder", ONLY}
_NUMBERS: Final = {"received", "settled", "replayed", "latest", "fence", "lapses", "killed", "deaths"}
#: Claims that lapsed after which an event waits before it is put back.
PATIENT_FOR: Final = 2


def texts(fields: Any) -> dict[str, str]:
    """Return a hash of Redis as text."""
    return {name.decode(): value.decode() for name, value in fields.items()}


def end_of(text: str) -> str:
    """Return how a handler has ended, of a field such as "done 5", "dead: ValueError" or "skipped"."""
    return text.partition(" ")[0].rstrip(":")


def fields_of(event_id: str, record: Mapping[str, str], locks: Mapping[str, str], lease: float | None) -> Fields:
    """Return the fields of an event, from its record, the lock of its resource, and its lease."""
    fields: Fields = {name: record[name] for name in _TEXTS & record.keys()}
    fields |= {name: int(record[name]) for name in _NUMBERS & record.keys()}
    for name, text in record.items():
        if name.startswith(HANDLER):
            fields[name] = end_of(text)
        elif name.startswith(PENDING):
            fields[name] = Schedule(*schedule_of(text)[:2])
        elif name.startswith(PROGRESS):
            fields[name] = text
    locked_by, fence, lapses, holder = locks.get(record.get("resource", ""), " 0 0 ").rsplit(" ", 3)
    if locked_by == event_id and record["state"] == State.ACCEPTED:
        if fence == "0":
            fields["kept"] = int(holder)
        elif int(fence) > fields.get("fence", 0):
            fields |= {"fence": int(fence), "lapses": int(lapses), "holder": holder}
    return fields | {"lease": int(lease or 0)}


def read(store: ScriptedStore, event_ids: list[str]) -> dict[str, Fields]:
    """Return the fields of these events in Redis, and of each when it is `due`, and if its record `expires`."""
    keys, pipeline = store.keys, store.redis.pipeline(transaction=False)
    pipeline.hgetall(keys.locks)
    for event_id in event_ids:
        pipeline.hgetall(keys.event + event_id)
        pipeline.zscore(keys.leases, event_id)
        pipeline.ttl(keys.event + event_id)
    locks, *replies = pipeline.execute()
    fields = {}
    for event_id, record, lease, lasts in zip(event_ids, replies[::3], replies[1::3], replies[2::3], strict=True):
        if record:
            fields[event_id] = fields_of(event_id, texts(record), texts(locks), lease)
            fields[event_id] |= {"expires": lasts >= 0, "due": int(record.get(b"due", 0))}
    return fields


def effective(fields: Fields, now: int) -> Fields:
    """Return the fields without those that say nothing: zeros, and leases that have run out."""
    ended = {name for name in ("lease", "kept") if fields.get(name, 0) <= now}
    return {name: value for name, value in fields.items() if value and name not in ended}


def hold_of_records(store: ScriptedStore, oracle: Oracle, before: Mapping[str, Fields], *, now: int) -> None:
    """Compare the fields of each event with the oracle.

    If a script was cut, or may not have come to the event, `before` has the event's earlier fields: then each field
    is as it was or as it should be, and the oracle takes what Redis has.
    """
    actual = read(store, [*oracle.events, *oracle.erased])
    back = oracle.erased & actual.keys()
    assert not back, f"{back} were erased"
    for event in oracle.events.values():
        assert event.id in actual, f"{event} is gone"
        expires, _ = actual[event.id].pop("expires"), actual[event.id].pop("due")
        expected, found = effective(event.fields, now), effective(actual[event.id], now)
        if event.id in before:
            earlier = effective(before[event.id], now)
            # Before a closed event, the claim's fields of the record may be older than those of the lock.
            stale = set() if event.is_open and found["state"] in OPEN else {"fence", "lapses"}
            for name in (expected.keys() | earlier.keys() | found.keys()) - stale:
                values = earlier.get(name), expected.get(name)
                assert found.get(name) in values, f"{name} is {found.get(name)} instead of {values}: {event}"
            event.fields, event.due = actual[event.id], event.due * (actual[event.id]["state"] == State.WAITING)
        else:
            assert found == expected, f"{_difference(found, expected)} of {event}"
        assert not (event.is_open and expires), f"{event} would expire"


def _difference(found: Fields, expected: Fields) -> str:
    names = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    return ", ".join(f"{name} is {found.get(name)} instead of {expected.get(name)}" for name in names)


def listed(store: ScriptedStore) -> dict[str, set[str]]:
    """Return the events in each list of a state."""
    pipeline = store.redis.pipeline(transaction=False)
    keys = {store.keys.prefix + name: name for name in _LISTED if name != "unhandled"}
    keys |= dict.fromkeys(store.keys.all_unhandled, "unhandled")
    for key in keys:
        pipeline.zrange(key, 0, -1)
    found: dict[str, set[str]] = {name: set() for name in _LISTED}
    for name, members in zip(keys.values(), pipeline.execute(), strict=True):
        found[name] |= {member.decode() for member in members}
    return found


def hold_of_lists(store: ScriptedStore, oracle: Oracle, *, is_exact: bool) -> None:
    """Ask for each open event where the sweeper finds it. If it `is_exact`, the list of each state has nothing else."""
    for name, found in listed(store).items():
        expected = {event.id for event in oracle.events.values() if event.fields["state"] in _LISTED[name]}
        if is_exact:
            assert found == expected, f"the list {name} has {found}, and {expected} have these states"
        else:
            assert name != "open" or found >= expected, f"nothing would find {expected - found}"


def hold_of_places(store: ScriptedStore, oracle: Oracle, now: int) -> None:
    """Ask for each open event in exactly one place from which it comes out. So it is while there are no faults.

    An urgent event stays in RQ's queue while a worker has it: a second list led to it.
    """
    keys, pipeline = store.keys, store.redis.pipeline(transaction=False)
    events = [event for event in oracle.events.values() if event.is_open]
    pipeline.lrange(keys.jobs, 0, -1)
    for event in events:
        for key in (keys.scheduled, f"{keys.prefix}blocked:{event.resource}"):
            pipeline.zscore(key, job_id(store.queue, event.id))
    queued, *scores = pipeline.execute()
    for event, *listed in zip(events, scores[::2], scores[1::2], strict=True):
        number = queued.count(job_id(store.queue, event.id).encode()) + (event.number("lease") > now)
        number += sum(score is not None for score in listed)
        assert number == 1 or (number and event.type in URGENT), f"{event} is in {number} places"


def hold_at_the_end(store: ScriptedStore, oracle: Oracle) -> None:
    """Look for what is left once nothing is open.

    The lock of an event whose record somebody has deleted stays until another event of the resource has it: only the
    record leads from an event to its lock.
    """
    redis, keys = store.redis, store.keys
    locks = {lock.split()[0] for lock in texts(redis.hgetall(keys.locks)).values()}
    assert locks <= oracle.without_record, f"{locks} have locks, and nobody has them"
    for key in (keys.leases, keys.delayed, keys.scheduled, keys.started, keys.jobs, keys.intermediate):
        assert not redis.exists(key), f"{key} has {dict(values(redis, key))}, and no event is open"
    jobs = list(redis.scan_iter(f"rq:job:{job_id(store.queue, '')}*", count=1_000))
    assert not jobs, f"{jobs} are left"
    entries: Any = redis.xrange(keys.by_time)
    by_resource: Any = redis.zrange(keys.by_resource, 0, -1)
    indexed = {fields[b"event"].decode() for entry, fields in entries if entry in by_resource}
    assert oracle.events.keys() <= indexed, f"the index lacks {oracle.events.keys() - indexed}"
    vanished = {name.decode() for name in cast("list[bytes]", redis.zrange(keys.vanished, 0, -1))}
    assert vanished >= oracle.vanished, f"nobody says that {oracle.vanished - vanished} vanished"
    assert vanished <= oracle.without_record, f"{vanished - oracle.without_record} vanished, and nobody deleted them"


def hold_of_erased(store: ScriptedStore, oracle: Oracle, erased: set[str], *, is_exact: bool) -> None:
    """Ask that nothing names these erased events and resources.

    Its job stays in the queue until a worker takes it, and in a key that a cut has left until the next round. If an
    acceptance was cut, the index names the event twice. The second name stays for the retention time. If somebody has
    deleted a record, the event's id stays for three days.
    """
    for name, value in _values(store).items():
        is_of_deleted = name in {"urgent", "unfinished", "vanished"} or any(
            event_id in name for event_id in oracle.without_record
        )
        if (name != "by_time" or is_exact) and not is_of_deleted:
            left = [text for text in erased if text in f"{name} {value}"]
            assert not left, f"{left} were erased, and {name} has {value}"


def hold_of_nothing(store: ScriptedStore) -> None:
    """Ask that nothing is left of events that were forgotten long ago."""
    left = {name: value for name, value in _values(store).items() if value and not name.startswith(_LASTING)}
    assert not left, f"these stay for ever: {left}"


def _values(store: ScriptedStore) -> dict[str, Any]:
    """Return what the queue's keys hold, by their names after its prefix."""
    found = values(store.redis, store.keys.prefix + "*")
    return {key.decode().removeprefix(store.keys.prefix): value for key, value in found}


def hold_of_forgotten(event: Event, now: int) -> None:
    """Ask that an event was settled, and is forgotten no sooner than after the retention time."""
    assert not event.is_open, f"{event} is gone"
    since = max(event.number("settled"), event.number("received"))
    assert since + RETENTION_MS <= now, f"{event} was forgotten too early"
