"""What must be true of Redis, compared with the oracle: records, lists, places of events, and expiries."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from model.oracle import OPEN, RETENTION_MS, Event, Oracle, Schedule
from model.scripted_store import ScriptedStore

from credhook.events import URGENT
from credhook.store import HANDLER, ONLY, PENDING, PREFIX, PROGRESS, State, schedule_of
from credhook.store.job import job_id
from support.store.accepting import values

#: Keys that may have no expiry, as the table in credhook/store/__init__.py says, and RQ's list of queues.
_LASTING: Final = (
    *("by_time", "by_resource", "open", "delayed", "leases", "locks", "dead", "quarantined", "unreadable"),
    *("unhandled:", "erasures", "mark", "schema", "traffic:"),
)
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

Fields = dict[str, Any]


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
            for name in expected.keys() | earlier.keys() | found.keys():
                values = earlier.get(name), expected.get(name)
                assert found.get(name) in values, f"{name} is {found.get(name)} instead of {values}: {event}"
            event.fields = actual[event.id]
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
    """Ask for each open event in exactly one place from which it comes out. So it is while nothing disturbs.

    An urgent event stays in RQ's queue while a worker has it: a second list led to it. The sweeper puts back isolated
    events, and blocked events whose resource is free: both lists are hints, and such an event may be in the queue as
    well, or twice. A blocked event has another event of its resource before it.
    """
    keys, pipeline = store.keys, store.redis.pipeline(transaction=False)
    open_events = [event for event in oracle.events.values() if event.is_open]
    pipeline.lrange(keys.jobs, 0, -1)
    for event in open_events:
        for key in (keys.scheduled, keys.isolated, f"{keys.prefix}blocked:{event.resource}"):
            pipeline.zscore(key, job_id(store.queue, event.id))
    jobs, *scores = pipeline.execute()
    queued = Counter(job.decode() for job in jobs)
    at: dict[str, list[str]] = {}
    for place, event in enumerate(open_events):
        job, places = job_id(store.queue, event.id), at.setdefault(event.id, [])
        listed_in = zip(("schedule", "isolated", "blocked"), scores[3 * place : 3 * place + 3], strict=True)
        places += [name for name, score in listed_in if score is not None]
        places += ["lease"] * (event.number("lease") > now)
        is_hinted = event.type in URGENT or places in (["isolated"], ["blocked"])
        if not is_hinted or not places:
            has_died = any(
                other.number("killed") + other.number("deaths") for other in oracle.of_resource(event.resource)
            )
            places += ["queue"] * (min(1, queued[job]) if has_died else queued[job])
        is_one = len(places) == 1 or (is_hinted and places)
        assert is_one or event.number("lapses") > PATIENT_FOR, f"{event} is in {places}"
    for event_id, places in at.items():
        others = oracle.of_resource(oracle.events[event_id].resource)
        if places == ["blocked"] and not any(other.number("kept") > now for other in others):
            assert any(at.get(other.id, places) != places for other in others), f"nothing lets {event_id} go on"


def hold_at_the_end(store: ScriptedStore, oracle: Oracle, *, was_calm: bool) -> None:
    """Look for what is left once nothing is open, and for keys that would stay for ever.

    If an acceptance was cut, the index names the event twice. The second name stays for the retention time. If somebody
    has deleted a record, the event's id stays for three days, and its lock until another event of the resource has it:
    only the record leads from an event to its lock.
    """
    redis, keys = store.redis, store.keys
    locks = {lock.split()[0] for lock in texts(redis.hgetall(keys.locks)).values()}
    assert locks <= oracle.without_record, f"{locks} have locks, and nobody has them"
    for key in (keys.leases, keys.delayed, keys.scheduled, keys.started, keys.jobs, keys.intermediate):
        assert not redis.exists(key), f"{key} has {dict(values(redis, key))}, and no event is open"
    entries: Any = redis.xrange(keys.by_time)
    by_resource: Any = redis.zrange(keys.by_resource, 0, -1)
    indexed = {fields[b"event"].decode() for entry, fields in entries if entry in by_resource}
    assert oracle.events.keys() <= indexed, f"the index lacks {oracle.events.keys() - indexed}"
    resources = {resource for kind, resource in oracle.marks if not kind and not oracle.of_resource(resource)}
    for raw_name, value in values(redis):
        name = raw_name.decode()
        ours = name.removeprefix(keys.prefix)
        if not name.startswith(PREFIX) or name == ours:  # RQ's keys, and those of the queue beside ours.
            assert not name.startswith(f"rq:job:{job_id(store.queue, '')}"), f"{name} is left"
            continue
        lasts = redis.ttl(raw_name) >= 0 or ours.startswith(_LASTING)
        assert lasts, f"{name} has no expiry, and no open event: {value}"
        if (name != keys.by_time or was_calm) and name != keys.vanished:
            left = [text for text in {*oracle.erased, *resources} if text in f"{name} {value}"]
            assert not left, f"{left} were erased, and {name} has {value}"
    lost = {event_id for event_id in oracle.vanished if redis.zscore(keys.vanished, event_id) is None}
    assert not lost, f"nobody says that {lost} vanished"
    noted: Any = redis.zrange(keys.vanished, 0, -1)
    false = {name.decode() for name in noted} - oracle.without_record
    assert not false, f"{false} vanished, and nobody has deleted them"


def hold_of_forgotten(event: Event, now: int) -> None:
    """Ask that an event was settled, and is forgotten no sooner than after the retention time."""
    assert not event.is_open, f"{event} is gone"
    since = max(event.number("settled"), event.number("received"))
    assert since + RETENTION_MS <= now, f"{event} was forgotten too early"
