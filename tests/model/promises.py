"""What must be true of Redis, compared with the oracle: records, lists, places of events, and expiries."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from model.oracle import GIVEN_UP, OPEN, Event, Oracle
from model.scripted_store import ScriptedStore

from credhook.events import URGENT
from credhook.store import FETCH, HANDLER, PENDING, PREFIX, PROGRESS, State
from credhook.store.job import job_id
from support.store.accepting import values

#: Keys that may have no expiry, as the table in credhook/store/__init__.py says, and RQ's list of queues.
_LASTING: Final = (
    *(
        "by_time",
        "by_resource",
        "open",
        "delayed",
        "leases",
        "locks",
        "dead",
        "quarantined",
        "unreadable",
        "unhandled:",
    ),
    *("erasures", "mark", "schema", "traffic:"),
)
_LISTED_STATES: Final = {
    "dead": {State.DEAD, State.DATA_GONE},
    "quarantined": {State.QUARANTINED},
    "open": OPEN,
}
#: Claims that lapsed after which an event waits before it is put back.
_PATIENT_FOR: Final = 2


def texts(fields: Any) -> dict[str, str]:
    """Return the fields of a record as text."""
    return {name.decode(): value.decode() for name, value in fields.items()}


def ends_of(fields: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """Return how handlers have ended, in the oracle's words, by the fields of a record or a claim."""
    ends = {name.removeprefix(prefix): how for name, how in fields.items() if name.startswith(prefix)}
    return {name: GIVEN_UP if how.startswith("dead") else how.partition(" ")[0] for name, how in ends.items()}


def schedules_of(record: Mapping[str, str], part: int) -> dict[str, int]:
    """Return of each schedule in a record the attempts (part 0) or when it is due (part 1)."""
    return {
        name.removeprefix(PENDING): int(text.split()[part]) for name, text in record.items() if name.startswith(PENDING)
    }


def hold_of_records(store: ScriptedStore, oracle: Oracle) -> None:
    """Compare each record, and ask for open events in the set that the sweeper reads; erased events stay away."""
    events, keys = list(oracle.events.values()), store.keys
    erased = sorted(oracle.erased - oracle.events.keys())
    pipeline = store.redis.pipeline(transaction=False)
    pipeline.zrange(keys.open, 0, -1)
    for event in events:
        pipeline.hgetall(keys.event + event.id)
        pipeline.ttl(keys.event + event.id)
    for event_id in erased:
        pipeline.exists(keys.event + event_id)
    listed, *replies = pipeline.execute()
    for event, fields, expires in zip(events, replies[0::2], replies[1::2], strict=False):
        _holds_of(event, texts(fields), expires=expires >= 0, listed=event.id.encode() in listed)
    back = [event_id for event_id, is_there in zip(erased, replies[2 * len(events) :], strict=True) if is_there]
    assert not back, f"{back} were erased"


def _holds_of(event: Event, record: dict[str, str], *, expires: bool, listed: bool) -> None:
    assert record, f"{event} is gone"
    assert (record["type"], record["resource"]) == (event.type, event.resource)
    state = State(record["state"])
    assert state == event.state or {state, event.state} <= OPEN, (event, record)
    if state in OPEN:
        assert listed, f"nothing would find {event}: {record}"
        assert not expires, f"{event} would expire"
    assert ends_of(record, HANDLER) == event.ends, (event, record)
    spent = schedules_of(record, 0)
    for who in {*spent, *event.attempts}:
        written, told = spent.get(who, 0), event.attempts.get(who, 0)
        is_exact = state in OPEN and who not in {FETCH, *event.ends}  # A cut settlement leaves the fetch's schedule.
        assert written == told or (written < told and not is_exact), f"{who} has spent {written} attempts: {event}"
    assert state not in OPEN or ends_of(record, PROGRESS).keys() == event.progress.keys(), (event, record)


def hold_of_places(store: ScriptedStore, oracle: Oracle, now: int) -> None:
    """Ask for each open event in exactly one place from which it comes out. So it is while nothing disturbs.

    An urgent event stays in RQ's queue while a worker has it: a second list led to it. The sweeper puts back isolated
    events, and blocked events whose resource is free: both lists are hints. A blocked event has another event of its
    resource before it.
    """
    keys, redis = store.keys, store.redis
    queued: Counter[str] = Counter(job.decode() for job in redis.lrange(keys.jobs, 0, -1))  # type: ignore[union-attr]
    at: dict[str, list[str]] = {}
    for event in filter(lambda event: event.is_open, oracle.events.values()):
        job, lease = job_id(store.queue, event.id), redis.zscore(keys.leases, event.id)
        blocked = f"{keys.prefix}blocked:{event.resource}"
        sets = {"schedule": keys.scheduled, "isolated": keys.isolated, "blocked": blocked}
        at[event.id] = [place for place, key in sets.items() if redis.zscore(key, job) is not None]
        at[event.id] += ["lease"] * (lease is not None and int(lease) > now)
        is_hinted = event.type in URGENT or at[event.id] in (["isolated"], ["blocked"])
        if not is_hinted or not at[event.id]:
            at[event.id] += ["queue"] * queued[job]
        is_one = len(at[event.id]) == 1 or (is_hinted and at[event.id])
        assert is_one or (event.lapses or 0) > _PATIENT_FOR, f"{event} is in {at[event.id]}"
    kept = {held.resource for held in oracle.held}
    for event_id, places in at.items():
        event = oracle.events[event_id]
        if places == ["blocked"] and event.resource not in kept:
            ahead = [other for other in oracle.of_resource(event.resource) if at.get(other.id, places) != places]
            assert ahead, f"nothing lets {event} go on"


def hold_at_the_end(store: ScriptedStore, oracle: Oracle, resources_erased: set[str], *, was_calm: bool) -> None:
    """Compare all lists with the records once nothing is open, and look for keys that would stay for ever.

    If an acceptance was cut, the index names the event twice. The second name stays for the retention time. The ids of
    events whose records somebody has deleted stay for three days.
    """
    redis, keys = store.redis, store.keys
    states = {event.id: event.state for event in oracle.events.values()}
    listed = {name: _members(store, keys.prefix + name) for name in _LISTED_STATES}
    listed["unhandled"] = {event_id for key in keys.all_unhandled for event_id in _members(store, key)}
    for name, of in {**_LISTED_STATES, "unhandled": {State.UNHANDLED}}.items():
        expected = {event_id for event_id, state in states.items() if state in of}
        assert listed[name] == expected, f"the list {name} has {listed[name]}, and {expected} have these states"
    for key in (keys.leases, keys.delayed, keys.scheduled, keys.started, keys.jobs, keys.intermediate):
        assert not redis.exists(key), f"{key} has {list(values(redis, key))}, and no event is open"
    locks = texts(redis.hgetall(keys.locks))
    # Only the record leads from an event to its lock.
    kept = {resource for resource, lock in locks.items() if lock.partition(" ")[0] not in oracle.deleted}
    assert not kept, f"locks without a holder: {locks}"
    entries: Any = redis.xrange(keys.by_time)
    index = [(entry, fields[b"event"].decode()) for entry, fields in entries]
    by_resource: Any = redis.zrange(keys.by_resource, 0, -1)
    missing = states.keys() - {event_id for entry, event_id in index if entry in by_resource}
    assert not missing, f"the index lacks {missing}"
    for raw_name, value in values(redis):
        name = raw_name.decode()
        ours = name.removeprefix(keys.prefix)
        if not name.startswith(PREFIX) or name == ours:  # RQ's keys, and those of the queue beside ours.
            assert not name.startswith(f"rq:job:{job_id(store.queue, '')}"), f"{name} is left"
            continue
        lasts = redis.ttl(raw_name) >= 0 or ours.startswith(_LASTING)
        assert lasts, f"{name} has no expiry, and no open event: {value}"
        if (name == keys.by_time and not was_calm) or name == keys.vanished:
            continue
        left = [text for text in {*oracle.erased, *resources_erased} if text in f"{name} {value}"]
        assert not left, f"{left} were erased, and {name} has {value}"


def _members(store: ScriptedStore, key: str) -> set[str]:
    members: Any = store.redis.zrange(key, 0, -1)
    return {member.decode() for member in members}
