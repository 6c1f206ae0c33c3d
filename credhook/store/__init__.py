"""Every key of a queue in Redis, every field of an event, and every state.

One hash per event is its record. It also marks the webhook-id as seen, so that neither exists without the other:

    credhook:<queue>:event:<webhook-id>
        type, resource, state, received     from the delivery
        due, seen                           while the event is open: next attempt, data was presented
        error                               the last error, or why the event was given up
        settled                             when it was settled, in ms; open events have none
        latest                              rank and time of the latest state of the resource that handlers have seen by
                                            its end, see claims.py
        place                               where the index lists it, unless it is the first of its ms; see index.lua
        fence, holder                       of the last claim; holder is the worker's name. While a worker holds the
                                            event, the lock of its resource has them, see lock.lua
        lapses                              claims that ended without a settlement
        deaths, killed                      workers that died with this event among others, and with it alone
        h:<handler>                         how the handler ended
        p:<handler>, p:fetch                "<attempts> <due>": attempts spent, when it is due, in ms; 0: at once, or
                                            behind another handler. "chosen" follows if the handler has chosen that
                                            time. Without `h:` the handler is pending
        c:<handler>                         id of the cause of its open failure
        g:<handler>                         what it has saved of its progress, until the event has ended
        replayed                            when it was last replayed, in ms: earlier claims write nothing
        only                                if the event runs no other handlers than these
        backfilled                          if a backfill has brought the event
        trace                               its trace context, see credhook/tracing

    accepted ──▶ done             every matching handler has run
        │  ▲──── waiting          a handler or the fetch failed; due says when the earliest is tried again, until queued
        ├──────▶ dead             given up, kept for replay
        ├──────▶ data_gone        the presented data was gone before every handler had run; kept for replay
        └──────▶ unhandled        the worker has no handler for the type; accepted again when a worker has one
    quarantined                   of an unknown type, kept for replay after an upgrade; or its id cannot be fetched
    unreadable                    another program has damaged the record. The sweeper has set it aside and logged it.
                                  `error` names the damage. A repaired record can be replayed. If the key is no hash,
                                  only the sorted set of this name lists the event

tests/model/oracle.py says the same as code, and tests/model/machine.py compares it with the scripts.

The index lists every event by time and by resource. The record decides: an entry without a record counts for nothing,
and the sweeper removes it after the retention time.

An open record (accepted, waiting) does not expire. Other records expire after the retention time. The webhook-id is
then forgotten.

Redis keeps the writes of a script that fails half way, or that a power cut ends. Each script therefore writes last what
makes a repetition do nothing: accept.lua the record, a settlement and an erasure the removal from the open events. The
sender's retry or the sweeper completes it. A key gets its expiry before or with its content; see expiring.lua.

When the keys after `credhook:<queue>:` expire. The sweeper removes old entries of sorted sets that never do. Tests read
this table:

    event:*             retention; never, while open
    conflict:*          retention
    history:*           7 d, while open; retention
    snapshot:*          1 d
    by_time             never
    by_resource         never
    open                never
    delayed             never
    leases              never
    locks               never
    dead                never
    quarantined         never
    unreadable          never
    unhandled:*         never
    urgent              1 h
    isolated            1 d
    blocked:*           1 d
    running:*           1 d
    rate:*:bucket       with the bucket
    refused:*           1 d
    cause:*             retention, at least 7 d
    backfilled          2 retention
    erased:*            retention
    erased              retention
    erasures            never
    heartbeats          1 d
    announcements       1 d
    receivers           1 min
    sweeper             3 rounds
    console             3 s
    console_jobs        1 d
    clock               15 min
    vanished            3 d
    losses              3 d
    mark                never
    platform:*:pause    with the pause
    platform:*:pace     10 min after its pause
    platform:*:bucket   with the bucket
    synced              1 min
    traffic:*           49 h; never, if a crash cut its first minute
    arrivals            15 d
    outside             1 d
    schema              never
    unfinished          any; the sweeper deletes it
"""

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha1
from typing import Final, Literal, NamedTuple, TypeAlias

from credhook.events import EVENT_TYPES

PREFIX: Final = "credhook:"
#: The number of this layout of the keys. A process does not use a queue that has another number in Redis.
SCHEMA: Final = 2
#: Field of an event's hash that says how a handler ended; the handler's name follows.
HANDLER: Final = "h:"
#: Value of this field for a handler that was given up; the cause follows.
GAVE_UP: Final = "dead: "
#: Value of this field for a handler that has run; its milliseconds follow.
TOOK: Final = "done "
#: Field of an event's hash: only these handlers run. The replay of a done event for one handler sets it.
ONLY: Final = "only"
#: Field of an event's hash with a schedule, "<attempts> <due in ms>". The handler's name follows, or `FETCH`.
PENDING: Final = "p:"
#: Field of an event's hash with the id of an open cause. The handler's name follows, or `FETCH`, or `WORKER`.
BLAMED: Final = "c:"
#: Field of an event's hash with what a handler has saved by `context.progress`; the handler's name follows.
PROGRESS: Final = "g:"
#: Stands for the fetch of the details where a handler's name could stand. Names of handlers have a dot.
FETCH: Final = "fetch"
#: Stands for the worker process there.
WORKER: Final = "worker"
#: Field of an event's hash with its trace context; see credhook/tracing.
TRACE: Final = "trace"
#: Prefix of the trace once the event was replayed.
REPLAYED: Final = "~"
#: Maximum number of entries in an event's history. The oldest are deleted.
HISTORY_ENTRIES: Final = 30
#: Seconds that a handler may ask to wait at most. Causes and histories are remembered for as long at least.
LONGEST_WAIT: Final = 604_800
#: Hours for which counts by minute are kept: two days and the current hour.
TRAFFIC_HOURS: Final = 49
#: Ms by which Redis's clock must jump to count as a step.
CLOCK_STEP_MS: Final = 2_000
#: Ms by which a time may lie ahead of Redis's clock without being mended.
CLOCK_SLACK_MS: Final = 1_000
#: Prefix of the id of a backfilled event; its type, a colon and its resource follow.
BACKFILLED: Final = "backfilled:"
#: The end of the year 9999 in ms since the epoch, the latest time that Python can represent.
LATEST_MS: Final = 253_402_300_799_999


#: How a worker process died: it ended by itself, it was ended from outside, or its host may have died.
Death: TypeAlias = Literal["own", "ended", "host"]


class _Key:
    def __init__(self, before: str, after: str = "") -> None:
        self._before, self._after = before, after

    def __get__(self, index: "Keys", _: type["Keys"]) -> str:
        return self._before + index.queue + self._after


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one queue. Queues that share a Redis do not see each other's events."""

    queue: str

    #: Prefix of every key except RQ's. It is the first key of each script; keys.lua derives the others.
    prefix = _Key(PREFIX, ":")
    #: Hash per event; the webhook-id follows.
    event = _Key(PREFIX, ":event:")
    #: Hash per webhook-id that came again with another type or resource: "<type> <resource>" → when, in ms.
    conflict = _Key(PREFIX, ":conflict:")
    #: List per event of its attempts and replays, "<ms> <JSON>", unless the first attempt was enough; the id follows.
    history = _Key(PREFIX, ":history:")
    #: Sealed details with presented data, until every event of the presentation is done; the resource's id follows.
    snapshot = _Key(PREFIX, ":snapshot:")
    #: Stream of the webhook-ids of all events, in the order of receipt; see index.lua.
    by_time = _Key(PREFIX, ":by_time")
    #: Sorted set of the entries of `by_time`, by `resource_score`.
    by_resource = _Key(PREFIX, ":by_resource")
    #: Hash of the announcements of receivers; see announcements.py.
    receivers = _Key(PREFIX, ":receivers")
    #: Prefix of a platform's keys; a digest of its API's URL follows, see worker/platform/limits.py.
    platform = _Key(PREFIX, ":platform:")
    #: Sorted set of the open events, by when they last moved, in ms. The sweeper reads it. The number is negative for a
    #: postponed event, which waits because a handler has chosen to: so it is not among the oldest.
    open = _Key(PREFIX, ":open")
    #: Sorted set of the open events that were blocked, retried or put back, by when they were received, in ms. An event
    #: that was postponed stands there with the time when it is due.
    delayed = _Key(PREFIX, ":delayed")
    #: Channel on which changes of events are published; see hints.lua.
    changes = _Key(PREFIX, ":open:changes")
    #: Sorted set of the events that a worker holds, by when its lease ends, in ms.
    leases = _Key(PREFIX, ":leases")
    #: Sorted set of the worker processes, by their last heartbeat, in ms.
    heartbeats = _Key(PREFIX, ":heartbeats")
    #: Hash of the announcements of workers, by name; see announcements.py.
    announcements = _Key(PREFIX, ":announcements")
    #: Sorted set of the events that ended as dead or data_gone, by when they were given up, in ms.
    dead = _Key(PREFIX, ":dead")
    #: Sorted set of the quarantined events, by when they came, in ms.
    quarantined = _Key(PREFIX, ":quarantined")
    #: Sorted set of the unhandled events of a type, by when a worker last had no handler; the type follows.
    unhandled = _Key(PREFIX, ":unhandled:")
    #: String that exists while the store may hold events that a backfill has accepted.
    backfilled = _Key(PREFIX, ":backfilled")
    #: Secret of the keyed hash in the name of each mark of an erasure, `erased:<hash>`; see erased.lua.
    erased = _Key(PREFIX, ":erased")
    #: List of the last erasures, JSON objects without ids; see erase.py.
    erasures = _Key(PREFIX, ":erasures")
    #: Sorted set of the unreadable events, by when they were set aside, in ms.
    unreadable = _Key(PREFIX, ":unreadable")
    #: Hash per cause of failures: who, what, at, version, first; the cause's id follows.
    cause = _Key(PREFIX, ":cause:")
    #: The lock of the process that runs the sweeper.
    sweeper_lock = _Key(PREFIX, ":sweeper")
    #: The lock of the console that runs the jobs.
    console_lock = _Key(PREFIX, ":console")
    #: Hash of the replays and erasures that consoles were asked for, by id; see credhook/console/jobs.py.
    console_jobs = _Key(PREFIX, ":console_jobs")
    #: Hash of the last step of Redis's clock: when it was noticed, and how far it went, both in ms.
    clock = _Key(PREFIX, ":clock")
    #: Sorted set of events whose records have vanished, by when they were missed, in ms; see vanished.lua.
    vanished = _Key(PREFIX, ":vanished")
    #: Hash of the losses: count, first, last, mark; see vanished.lua.
    losses = _Key(PREFIX, ":losses")
    #: String that is missing once Redis has lost all data of the queue; see emptied.lua.
    mark = _Key(PREFIX, ":mark")
    #: Hash per hour of what came and what became of it, by minute; the hour follows; see traffic.py.
    traffic = _Key(PREFIX, ":traffic:")
    #: Hash of the deliveries of each hour; see arrivals.py.
    arrivals = _Key(PREFIX, ":arrivals")
    #: The last checks of public URL and endpoint, as JSON; see credhook/ops/outside.py.
    outside = _Key(PREFIX, ":outside")
    #: The number of the schema, see `SCHEMA`.
    schema = _Key(PREFIX, ":schema")
    #: A new key before it has its expiry. It exists only while a script runs, or if a crash has cut that script.
    unfinished = _Key(PREFIX, ":unfinished")
    #: String that is written in order to wait for its fsync.
    synced = _Key(PREFIX, ":synced")
    #: List of jobs that our workers take first. A hint: each job is in RQ's queue as well.
    urgent = _Key(PREFIX, ":urgent")
    #: Hash of the locks: resource → event that a worker holds, and its claim; see lock.lua.
    locks = _Key(PREFIX, ":locks")
    #: Sorted set of the jobs of poison candidates, by when their events were received. A hint.
    isolated = _Key(PREFIX, ":isolated")
    #: Set of the events under way in a handler with a limit; its name follows.
    running = _Key(PREFIX, ":running:")
    #: Prefix of the token bucket of a handler with a rate; its name follows, see platform.lua.
    rate = _Key(PREFIX, ":rate:")
    #: Hash of a foreign job, moved out of RQ's reach; the job's id follows.
    refused = _Key(PREFIX, ":refused:")
    #: RQ's queue.
    jobs = _Key("rq:queue:")
    #: RQ's list of jobs that were popped but not started.
    intermediate = _Key("rq:queue:", ":intermediate")
    #: RQ's started jobs, by when RQ takes their worker for dead, in s.
    started = _Key("rq:wip:")
    #: RQ's schedule.
    scheduled = _Key("rq:scheduled:")
    #: RQ's failed jobs.
    failed = _Key("rq:failed:")

    @property
    def all_unhandled(self) -> tuple[str, ...]:
        """Return the sets of unhandled events, one per type: a worker reads only those of its handlers."""
        return tuple(self.unhandled + event_type for event_type in EVENT_TYPES)

    def resource_score(self, resource: str) -> int:
        """Return the score of a resource in `by_resource`. Two resources may share one; the record decides."""
        digest = sha1(resource.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()
        return int(digest[:13], 16)  # A score has 52 bits without loss. index.lua computes the same.


class State(StrEnum):
    """The state of an event."""

    ACCEPTED = "accepted"
    WAITING = "waiting"
    DONE = "done"
    DEAD = "dead"
    DATA_GONE = "data_gone"
    UNHANDLED = "unhandled"
    QUARANTINED = "quarantined"
    UNREADABLE = "unreadable"


def ending(recorded: str) -> tuple[str, int | None]:
    """Return a handler's status and its milliseconds, or None if these are unknown."""
    took = recorded.removeprefix(TOOK)
    if took != recorded and took.isascii() and took.isdigit():
        return TOOK.rstrip(), int(took)
    return recorded, None


class Schedule(NamedTuple):
    """The schedule of one handler of an event, or of its fetch.

    Attributes:
        attempts: attempts that have been spent.
        due: when it may be tried again, ms since the epoch by Redis's clock; 0: at once.
        chosen: True if the handler has chosen that time, by `Retry(after=…)`.
    """

    attempts: int = 0
    due: int = 0
    chosen: bool = False


def schedule_of(recorded: str) -> Schedule:
    """Return the schedule in a record's field. If something else has written to it, the handler is due at once."""
    attempts, due, *chosen = [*recorded.split(" "), ""]
    is_valid = attempts.isdecimal() and due.isdecimal()
    return Schedule(int(attempts), int(due), "chosen" in chosen) if is_valid else Schedule()
