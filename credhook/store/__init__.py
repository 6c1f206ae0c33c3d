"""What Redis remembers of an event: every key of its queue, every field, every state.

One hash per event is its record and its mark of having been seen, so that neither can exist without the other:

    credhook:<queue>:event:<webhook-id>
        type, resource, state, received; while open also due, error, seen; attempts, fence and holder, the worker's
        token, of the last claim, which the lock of its resource has while a worker has the event, see lock.lua; deaths
        and killed, how often a worker has died with it among others, and with it alone; only and pending, the handlers
        that it still waits for; h:<name> as each handler ends; c:<name> as long as it stands with a cause of failures;
        again and again_at, how often the delivery has come again, and when it last did; backfilled, if no delivery had
        brought it; trace, where the receiver traces, see traces.py

    accepted ──▶ done             every matching handler has run
        │  ▲──── waiting          an attempt failed; due says when the next one is, until it is queued
        ├──────▶ dead             given up, kept for replay
        ├──────▶ data_gone        the presented data was gone before every handler had run; kept like the dead
        └──────▶ unhandled        the worker that took it has no handler for it; accepted again as soon as another has
    quarantined                   of a type that this version does not know, kept for replay after an upgrade
    unreadable                    somebody else has written to the record, and it cannot be worked on: set aside by the
                                  sweeper, which names it in the log; `error` says what is wrong with it, and once
                                  that is mended it can be replayed. A key that is no hash at all is in the sorted set
                                  of that name only

Every event is listed by type and resource in the order of receipt, see `Keys.event_index`. The record is the truth: an
entry without a record is no event, and the sweeper removes it after the retention time.

An open record (accepted, waiting) has no expiry; any other lives for the retention time and then expires, and with it
the memory of its webhook-id.

A script that fails half way keeps what it has written. Each of ours therefore writes last what makes its own repetition
do nothing: the receiver's the record, a settlement the removal from the open events. What a broken-off script has left
undone, the sender's repetition or the sweeper does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha1
from typing import Final

from credhook.events import EVENT_TYPES

PREFIX: Final = "credhook:"
#: The number of this layout of the keys. A process does not use a queue that has another number in Redis.
SCHEMA: Final = 1
#: Fields that accept.lua gives the record of a new event; with a trace it gives one more.
NEW_FIELDS: Final = 4
#: Conflicts that are kept for one webhook-id. Further ones are counted and logged like these.
MOST_CONFLICTS: Final = 100
#: Field of an event's hash that says how a handler ended; the handler's name follows.
HANDLER: Final = "h:"
#: How a handler that was given up is recorded there; the cause follows.
GAVE_UP: Final = "dead: "
#: Status of a handler that has run; its milliseconds follow.
TOOK: Final = "done "
#: Field of an event's hash: only these handlers run. A replay of a done event sets it, and so does an unhandled event
#: some of whose handlers have ended. It is deleted when they have ended, too.
ONLY: Final = "only"
#: Field of an event's hash that names the handlers for which a waiting one waits: it is not done without them.
PENDING: Final = "pending"
#: Field of an event's hash that names the cause with which it stands: by a handler, whose name follows, by `fetch`, or
#: by `worker`, if one has died with it.
BLAMED: Final = "c:"
#: Field of an event's hash with its trace; see traces.py.
TRACE: Final = "trace"
#: What it begins with once the event has been replayed.
REPLAYED: Final = "~"
#: Maximum number of causes per queue. Beyond it, the causes that were counted least recently are deleted.
MOST_CAUSES: Final = 1_000
#: Maximum number of entries in an event's history. The oldest are deleted.
HISTORY_ENTRIES: Final = 30
#: What the id of an event begins with that a backfill has accepted; its type, a colon and its resource follow.
BACKFILLED: Final = "backfilled:"
#: What stands for the type there if this version does not know it.
OTHER: Final = "other"
#: Into how many keys the events of one type are divided, by resource, so that those of one resource are found soon.
BUCKETS: Final = 32
#: Milliseconds since the epoch beyond which no time can be written: the end of the year 9999.
LATEST_MS: Final = 253_402_300_799_999


class _Key:
    """A key of a queue: the queue's name between what stands before and after it."""

    def __init__(self, before: str, after: str = "") -> None:
        self._before, self._after = before, after

    def __get__(self, index: "Keys", _: type["Keys"]) -> str:
        return self._before + index.queue + self._after


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one queue. Queues that share a Redis do not see each other's events."""

    queue: str

    #: What every key but RQ's begins with: the first key of each script; keys.lua derives the others.
    prefix = _Key(PREFIX, ":")
    #: Hash per event; the webhook-id follows.
    event = _Key(PREFIX, ":event:")
    #: Hash per webhook-id that came again with another type or resource: "<type> <resource>" → when, in ms.
    conflict = _Key(PREFIX, ":conflict:")
    #: List per event of what has happened to it, "<ms> <JSON>", unless it was handled at once; the webhook-id follows.
    history = _Key(PREFIX, ":history:")
    #: String per resource: "<rank>:<ms>", the latest state of it that handlers have seen; the resource's id follows.
    resource = _Key(PREFIX, ":resource:")
    #: The details of presented data, sealed, until every handler has run; the webhook-id follows.
    snapshot = _Key(PREFIX, ":snapshot:")
    #: What the keys of the index of events begin with; see `event_index`.
    index = _Key(PREFIX, ":index:")
    #: Hash of what each receiver process announces; see announcements.py.
    receivers = _Key(PREFIX, ":receivers")
    #: State of a platform; a digest of its API's URL follows, see shared_circuit.py.
    platform = _Key(PREFIX, ":platform:")
    #: Sorted set of the open events, by when they last moved, in ms: what the sweeper looks through.
    open = _Key(PREFIX, ":open")
    #: Sorted set of the open events that were claimed or requeued, by when they were received, in ms.
    open_by_received = _Key(PREFIX, ":open_by_received")
    #: Channel on which changes of events are published; see changes.lua.
    changes = _Key(PREFIX, ":open:changes")
    #: Sorted set of the events that a worker holds, by when its lease ends, in ms.
    leases = _Key(PREFIX, ":leases")
    #: Sorted set of the worker processes, by when they last said that they are alive, in ms.
    workers = _Key(PREFIX, ":workers")
    #: Hash of what each worker process announces of its handlers, by its token; see announcements.py.
    handlers = _Key(PREFIX, ":handlers")
    #: Sorted set of the events that ended as dead or data_gone, by when they were given up, in ms.
    dead = _Key(PREFIX, ":dead")
    #: Sorted set of the quarantined events, by when they came, in ms.
    quarantined = _Key(PREFIX, ":quarantined")
    #: Sorted set of the unhandled events of a type, by when a worker last had no handler; the type follows.
    unhandled = _Key(PREFIX, ":unhandled:")
    #: Sorted set of the events that a backfill has accepted, by when, in ms.
    backfilled = _Key(PREFIX, ":backfilled")
    #: Set of what deliveries bring while a backfill runs, "<type> <resource>", and of those that run.
    arrivals = _Key(PREFIX, ":arrivals")
    #: Sorted set of the events whose records cannot be read, by when they were set aside, in ms.
    unreadable = _Key(PREFIX, ":unreadable")
    #: Sorted set of the causes of failures, by when each has last been counted, in ms.
    causes = _Key(PREFIX, ":causes")
    #: The process that runs the sweeper.
    leader = _Key(PREFIX, ":sweeper")
    #: Lease of the admin listener that exports the figures of the whole queue.
    exporter = _Key(PREFIX, ":exporter")
    #: The number of the schema, see `SCHEMA`.
    schema = _Key(PREFIX, ":schema")
    #: Hash: a record until it has its expiry; it lives for the length of a script.
    unfinished = _Key(PREFIX, ":unfinished")
    #: String that is written so that there is something whose fsync can be waited for.
    synced = _Key(PREFIX, ":synced")
    #: List of jobs that our workers take first. A hint: each of them stands in RQ's queue as well.
    urgent = _Key(PREFIX, ":urgent")
    #: Hash of the locks: resource → the event of it that a worker holds, and its claim; see lock.lua.
    locks = _Key(PREFIX, ":locks")
    #: Sorted set of the jobs that wait for such an event to be settled, by when these came; the resource's id follows.
    blocked = _Key(PREFIX, ":blocked:")
    #: Sorted set of the jobs that one process is to work on alone, by when their events came. A hint.
    isolated = _Key(PREFIX, ":isolated")
    #: Set of the events that a handler has, where it may have only so many at a time; its name follows.
    running = _Key(PREFIX, ":running:")
    #: Hash of a job that is none of ours, taken out of RQ's reach; the job's id follows.
    refused = _Key(PREFIX, ":refused:")
    #: RQ's queue.
    jobs = _Key("rq:queue:")
    #: RQ's list of jobs that were popped and have not been looked at yet.
    intermediate = _Key("rq:queue:", ":intermediate")
    #: RQ's started jobs, by when their worker counts as dead, in s.
    started = _Key("rq:wip:")
    #: RQ's schedule.
    scheduled = _Key("rq:scheduled:")
    #: RQ's failed jobs.
    failed = _Key("rq:failed:")

    @property
    def all_unhandled(self) -> tuple[str, ...]:
        """The sets of unhandled events: one for each type, since a worker looks for its own again and again."""
        return tuple(self.unhandled + event_type for event_type in EVENT_TYPES)

    def event_index(self, event_type: str, resource: str) -> str:
        """Sorted set of the events of a type, and of the resources of a bucket, by when they were received, in ms."""
        return self.event_indexes((event_type,), resource)[0]

    def event_indexes(self, types: Iterable[str] = (*EVENT_TYPES, OTHER), resource: str | None = None) -> list[str]:
        """Return the indexes of these types, for one resource or for all."""
        buckets: Iterable[int] = range(BUCKETS)
        if resource is not None:  # keys.lua has the same.
            buckets = (sha1(resource.encode(errors="surrogateescape"), usedforsecurity=False).digest()[0] % BUCKETS,)
        return [f"{self.index}{one if one in EVENT_TYPES else OTHER}:{bucket}" for one in types for bucket in buckets]

    def cause(self, cause_id: str) -> str:
        """Hash of a cause: who has failed, what with, where (`at`), in which version, since when, and how often."""
        return f"{self.causes}:{cause_id}"

    def standing(self, cause_id: str) -> str:
        """Sorted set of the events that stand with it, by when they came to, in ms; below 0 while they are open."""
        return f"{self.causes}:{cause_id}:events"


class State(StrEnum):
    """Where an event stands."""

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
