"""Puts events back that no worker had a handler for, as soon as there is one.

Each process does it for the handlers that it has, at its start and then in each round of its reconciler, whoever leads.
While workers without the handler run beside it, they may take such an event again, and settle it as they did before: it
then waits for the next round. That is all that keeps the two from passing it to and fro at full speed, and it is
enough. An event costs them one claim a round and no attempt; in each round those with the handler get their share of
what is left; and what the last worker without it leaves behind is found by the round after.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import structlog
from redis import Redis

from credhook.store import ONLY, Keys, State
from credhook.worker.queue.replay import How, Replay, Settled

log = structlog.get_logger("credhook.worker")

#: Events of one type that one round puts back at most; and of all types that one script does, which holds up Redis for
#: a few milliseconds.
PAGE: Final = 2_000
BATCH: Final = 200


class Found(NamedTuple):
    """An unhandled event, and when a worker last had no handler for it, in ms."""

    name: bytes
    type: str
    since: float


class Unhandled:
    """The unhandled events of one queue, seen by a process that has handlers."""

    def __init__(self, redis: Redis, *, queue: str, wanted: Mapping[str, Collection[str]]) -> None:
        """`wanted`: event type → the names of the handlers that this process has for it."""
        self._redis = redis
        self._index = Keys(queue)
        self._replay = Replay(redis, queue=queue)
        self._wanted = {event_type: frozenset(names) for event_type, names in wanted.items() if names}
        #: How many of a type, from the oldest on, the next round leaves out: they are for handlers of other workers.
        self._start = Counter[str]()

    def put_back(self) -> int:
        """Put back those that this process has a handler for, in the order in which they came; how many.

        Two processes that do so at once put back each event once.

        Raises:
            RedisError: Redis failed; some may have been put back.
        """
        pages = self._pages()
        found = in_reach(pages)
        ours = self._ours(found)
        put_back = Counter[str]()
        for batch in (ours[start : start + BATCH] for start in range(0, len(ours), BATCH)):
            settled = [Settled(one.name.decode(errors="surrogateescape"), State.UNHANDLED) for one in batch]
            outcomes = zip(batch, self._replay(settled, how=How.RESUME), strict=True)
            put_back.update(one.type for one, outcome in outcomes if outcome == b"replayed")
        if put_back:
            log.info("unhandled_put_back", count=put_back.total())
        if any(len(page) == PAGE for page in pages):
            self._start.update(one.type for one in found)
            self._start.subtract(put_back)
        else:
            self._start.clear()
        return put_back.total()

    def _pages(self) -> list[list[Found]]:
        """The next of each type, from the oldest on."""
        pipeline = self._redis.pipeline(transaction=False)
        for event_type in self._wanted:
            start = self._start[event_type]
            pipeline.zrange(self._index.unhandled + event_type, start, start + PAGE - 1, withscores=True)
        replies = pipeline.execute(raise_on_error=False)  # A key may be no sorted set: the reconciler says so.
        return [
            [Found(name, event_type, since) for name, since in reply]
            for event_type, reply in zip(self._wanted, replies, strict=True)
            if isinstance(reply, list)
        ]

    def _ours(self, found: Sequence[Found]) -> list[Found]:
        """Those of them that a handler is here for, by when they came."""
        pipeline = self._redis.pipeline(transaction=False)
        for one in found:
            pipeline.hmget(self._index.event.encode() + one.name, "received", ONLY)
        ours: list[tuple[int, Found]] = []
        for one, fields in zip(found, pipeline.execute(raise_on_error=False), strict=True):
            received, only = fields if isinstance(fields, list) else (None, None)  # It may be no hash.
            names = (only or b"").decode(errors="replace").split()
            if not names or not self._wanted[one.type].isdisjoint(names):
                ours.append((int(received) if received and received.isdigit() else 0, one))
        return [one for _, one in sorted(ours)]


def in_reach(pages: Sequence[Sequence[Found]]) -> list[Found]:
    """What can be put back now without an event overtaking an older one of another type. Pure.

    `pages`: the oldest of each type; a full one may have others behind it.
    """
    until = min((page[-1].since for page in pages if len(page) == PAGE), default=float("inf"))
    return [one for page in pages for one in page if one.since <= until]
