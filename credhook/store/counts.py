"""How many events of one queue are in which state, and how old the oldest open event is.

Status, console, doctor and metrics show these counts. Reading them costs the same however many events there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.client import Pipeline

from credhook.events import EVENT_TYPES
from credhook.store import LATEST_MS, Keys
from credhook.store.store import SyncStore

#: Seconds during which a dead event counts as recent.
RECENT_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class EventCounts:
    """The events of one queue by state.

    Attributes:
        open: neither done nor given up.
        in_flight: events that a worker has claimed.
        retrying: events that wait for their next attempt, without the postponed ones.
        dead: events that were given up; they can be replayed.
        quarantined: events of an unknown type, or whose id cannot be fetched.
        unreadable: events whose record cannot be read.
        queued: events that wait for a worker.
        dead_recently: events that were given up within the last day.
        unhandled: events that wait for a handler, by type.
        oldest_age: seconds since the oldest open event was received; None if no event is open. Of an event that was
            postponed, seconds since it has been due.
        postponed: events that wait because a handler has chosen to, by `Retry(after=…)`.
        vanished: events that were not done, and whose records have vanished within three days.
        vanished_age: seconds since the first of these was missed; None if none has vanished.
    """

    open: int = 0
    in_flight: int = 0
    retrying: int = 0
    dead: int = 0
    quarantined: int = 0
    unreadable: int = 0
    queued: int = 0
    dead_recently: int = 0
    unhandled: dict[str, int] = field(default_factory=dict)
    oldest_age: float | None = None
    postponed: int = 0
    vanished: int = 0
    vanished_age: float | None = None

    @property
    def waiting(self) -> int:
        """Return the number of events that wait for a worker, a handler, an upgrade or a repair."""
        return self.open + sum(self.unhandled.values()) + self.quarantined + self.unreadable


def counted(number: int, one: str, many: str) -> str:
    """Return the number with the words that fit it: `1 event waits`, `2 events wait`."""
    return f"{number} {one if number == 1 else many}"


def request_counts(pipeline: Pipeline | AsyncPipeline, keys: Keys, *, now: float) -> None:
    """Add the commands that `read_counts` needs to the pipeline; `now` is in seconds since the epoch."""
    # The first eight in the order of the fields of `EventCounts`.
    for key in (keys.open, keys.leases, keys.scheduled, keys.dead, keys.quarantined, keys.unreadable):
        pipeline.zcard(key)
    pipeline.llen(keys.jobs)
    pipeline.zcount(keys.dead, (now - RECENT_SECONDS) * 1_000, "+inf")
    # An event that was requeued or retried is in `delayed`. Postponed events are below 0 in `open`.
    for key in (keys.open, keys.delayed):
        pipeline.zrange(key, 0, LATEST_MS, byscore=True, offset=0, num=1, withscores=True)
    for key in keys.all_unhandled:
        pipeline.zcard(key)
    pipeline.zcount(keys.open, "-inf", "(0")
    pipeline.hmget(keys.losses, ["count", "first"])


def counts_of(store: SyncStore, keys: Keys, *, now: float) -> EventCounts:
    """Return the counts of one queue."""
    pipeline = store.redis.pipeline(transaction=False)
    request_counts(pipeline, keys, now=now)
    return read_counts(pipeline.execute(), now=now)


def read_counts(replies: Sequence[Any], *, now: float) -> EventCounts:
    """Return the counts from the replies to `request_counts`; `now` is by Redis's clock."""
    open_events, in_flight, scheduled, *settled, jobs, dead_recently = replies[:8]
    # A job may be in the queue twice, or be left over from an event that is done.
    queued = max(0, min(jobs, open_events - in_flight - scheduled))
    ages = [max(0.0, now - score / 1_000) for _, score in replies[8]]
    # A postponed event has no age before it is due.
    ages += [age for _, score in replies[9] if (age := now - score / 1_000) >= 0]
    by_type = zip(EVENT_TYPES, replies[10:-2], strict=True)
    unhandled = {event_type: count for event_type, count in by_type if count}
    postponed, (vanished, first) = replies[-2:]
    vanished_age = max(0.0, now - int(first) / 1_000) if first else None
    first_eight = open_events, in_flight, max(0, scheduled - postponed), *settled, queued, dead_recently
    oldest_age = max(ages, default=None)
    return EventCounts(*[*first_eight, unhandled, oldest_age, postponed, int(vanished or 0), vanished_age])
