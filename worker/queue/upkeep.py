"""Takes events whose records have expired from the index of events, in bounded steps."""

from typing import Final, cast

from redis import Redis

from credhook.store import Keys, lua

#: Entries that one script looks at: it holds up Redis for a millisecond. And scripts of one round.
_PAGE: Final = 500
_PAGES: Final = 40
#: Milliseconds within which nearly all events are settled: a record lives for the retention time from then on.
_SETTLED: Final = 60_000

_SWEEP: Final = lua.load("sweep.lua")


class IndexSweep:
    """Goes through the old entries of the index, round after round."""

    def __init__(self, redis: Redis, *, queue: str, retention: int) -> None:
        """`retention`: seconds that a settled event is remembered."""
        index = Keys(queue)
        self._keys = [index.prefix, *index.event_indexes()]
        self._retention = retention
        self._script = redis.register_script(_SWEEP)
        #: Where the next step begins: the number of the index, and the entries of it that are skipped.
        self._next = (0, 0)

    def run(self, now: int) -> None:
        """Sweep one round, at `now` in ms by Redis's clock.

        Raises:
            RedisError: Redis failed.
        """
        before = now - self._retention * 1_000 - _SETTLED
        for _ in range(_PAGES):
            reply = self._script(keys=self._keys, args=[before, *self._next, _PAGE])
            self._next = cast("tuple[int, int]", tuple(reply))
            if self._next == (0, 0):
                return
