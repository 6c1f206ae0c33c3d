"""Keeps the lists of events as they should be: nothing forgotten stays listed, and nothing remembered is left out.

What an older version has accepted is not listed. A round through the whole ledger, a little at a time, lists it; the
sorted sets beside the streams are pruned of what is forgotten likewise. When each is due is in rounds.py.
"""

from collections.abc import Callable, Iterator
from typing import Final, cast

import structlog
from redis import Redis

from credhook.events import EVENT_TYPES
from credhook.store import BUCKETS, OTHER, Keys, lua, place
from credhook.worker.queue.rounds import clock, read_rounds, write_rounds

log = structlog.get_logger("credhook.sweeper")

#: Entries that one script looks at, which holds up Redis for a few milliseconds; and those that one round sweeps.
PAGE: Final = 500
MOST_SWEPT: Final = 20_000
#: Milliseconds within which nearly all events are settled. The record of one lasts for the retention time from then on:
#: swept any sooner, each would be listed beside its stream for the seconds that its record has left.
_SETTLED: Final = 60_000
#: Steps that one round takes through the whole ledger.
_STEPS: Final = 4

SWEEP: Final = lua.load("sweep.lua")
FORGET_GONE: Final = lua.load("forget_gone.lua")
RELIST: Final = lua.load("relist.lua")
REOPEN: Final = lua.load("reopen.lua")


class Upkeep:
    """Looks after the lists, for the process that leads."""

    def __init__(self, redis: Redis, *, queue: str, retention: int) -> None:
        """Prepare; `retention` is in seconds."""
        self._redis = redis
        self._index = Keys(queue)
        self._retention = retention
        self._sweep = redis.register_script(SWEEP)
        self._reopen = redis.register_script(REOPEN)
        #: Where the next round begins among the open events.
        self._start = 0
        self._steps: Iterator[int] = iter(())
        self._listed = 0
        #: Whether pruning was begun last: where that cannot be noted, it would be due for ever.
        self._pruned = False
        self._odd: set[str] = set()

    def run(self, now: int) -> None:
        """One round, at `now` in ms by Redis's clock.

        Raises:
            RedisError: Redis failed.
        """
        self._sweep_all(now - self._retention * 1_000 - _SETTLED)
        gone, more = self._reopen(keys=[self._index.prefix], args=[self._start, PAGE])
        self._start = self._start + PAGE - gone if more else 0
        self._step()

    def _sweep_all(self, before: int) -> None:
        left, odd = MOST_SWEPT, set[str]()
        lists = self._index.listed, self._index.late
        for event_type in (*EVENT_TYPES, OTHER):
            keys = [prefix + place(event_type, each) for each in range(BUCKETS) for prefix in lists]
            taken = PAGE
            while taken == PAGE and left > 0:
                taken, *others = self._sweep(keys=[self._index.prefix, *keys], args=[before, PAGE])
                left -= taken
                odd.update(key.decode() for key in others)
        if new := sorted(odd - self._odd):
            hint = "somebody else has written to them; rename or delete them"
            log.error("keys_unusable", keys=dict.fromkeys(new, "not of our type"), hint=hint)
        self._odd = odd

    def _step(self) -> None:
        """Some steps of the round through the whole ledger, or of the pruning, that is under way or is due."""
        for _ in range(_STEPS):
            while (listed := next(self._steps, None)) is None:
                if not self._begin():
                    return
            self._listed += listed

    def _begin(self) -> bool:
        """Begin with what is due; whether anything is."""
        if self._listed:
            log.info("events_listed", count=self._listed, hint="an older version had accepted them")
            self._listed = 0
        # By the clock as it is now: what has ended in this step would otherwise have ended in the future, and be due.
        rounds, now = read_rounds(self._redis, self._index), clock(self._redis)
        # Pruning first: a look through a large ledger takes hours, and each leader begins it anew.
        if rounds.prune_is_due(now) and not self._pruned:
            self._steps, self._pruned = prune_late(self._redis, self._index), True
            return True
        self._pruned = False
        if rounds.whole_is_due(now):
            self._steps = list_all(self._redis, self._index)
            return True
        return False


def list_all(redis: Redis, index: Keys, *, looked: Callable[[int], None] = lambda _: None) -> Iterator[int]:
    """List all that is not listed, and no longer list beside the streams what was forgotten, a step at a time.

    `looked` is called with the number of keys that were looked at.

    Yields:
        How many events a step has listed.

    Raises:
        RedisError: Redis failed; begin anew.
    """
    relist = redis.register_script(RELIST)
    cursor, begun = 0, False
    while cursor or not begun:
        begun = True
        cursor, found = redis.scan(cursor, match=index.event + "*", count=PAGE)
        keys = cast(list[bytes], found)
        yield relist(keys=[index.prefix], args=[key.removeprefix(index.event.encode()) for key in keys]) if keys else 0
        looked(len(keys))
    write_rounds(redis, index, read_rounds(redis, index).after_whole(clock(redis)))
    yield from prune_late(redis, index)


def prune_late(redis: Redis, index: Keys) -> Iterator[int]:
    """No longer list beside the streams what was forgotten, a step at a time.

    Yields:
        0, the number of events that a step has listed.

    Raises:
        RedisError: Redis failed; begin anew.
    """
    forget_gone = redis.register_script(FORGET_GONE)
    for key in _late(redis, index):
        cursor, begun = 0, False
        while cursor or not begun:
            begun = True
            cursor, members = redis.zscan(key, cursor, count=PAGE)
            if members:
                forget_gone(keys=[index.prefix, key], args=[member for member, _ in members])
            yield 0
    write_rounds(redis, index, read_rounds(redis, index)._replace(pruned=clock(redis)))


def _late(redis: Redis, index: Keys) -> list[str]:
    """The sorted sets of listed events that there are."""
    keys = [index.late + place(event_type, each) for event_type in (*EVENT_TYPES, OTHER) for each in range(BUCKETS)]
    pipeline = redis.pipeline(transaction=False)
    for key in keys:
        pipeline.type(key)
    return [key for key, kind in zip(keys, pipeline.execute(), strict=True) if kind == b"zset"]
