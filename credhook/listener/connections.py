"""All connections of a listener: who is let in, who has to go, and what they hold together.

Time is looked at twice a second, for all of them at once: a timer for each request would cost a delivery more than
everything else here.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol
from weakref import ref

from credhook.listener.limits import Limits
from credhook.listener.refusals import MADE_ROOM, Refusal
from credhook.listener.tally import Tally

#: Seconds between two looks.
_SWEEP: Final = 0.5

#: Seconds that a sender may keep us waiting before it gives way to a newcomer: a handshake and a request from another
#: continent. Under a flood, whoever is quicker gets through; with more patience the newcomers would be refused instead.
_PATIENCE: Final = 0.5

#: Seconds between two searches for those who have to give way: each looks at every connection.
_SEARCH: Final = 0.1


class Connection(Protocol):
    """One of them, with or without a request, or still shaking hands.

    Attributes:
        held: bytes of requests that are not finished.
        served: whether a request of it has been answered.
    """

    held: int
    served: bool

    def waiting(self, now: float) -> float:
        """Seconds for which its sender has kept us waiting; 0 while it waits for us."""

    def overdue(self, now: float) -> Refusal | None:
        """Why it should be ended now, if it should."""

    def end(self, refusal: Refusal) -> None:
        """Close it, with an answer if one is due."""


class Connections:
    """The connections of one listener.

    Attributes:
        clock: seconds, from any beginning.
        now: the same as of the latest sweep: exact enough for time-outs, and free.
    """

    def __init__(
        self,
        limits: Limits,
        listener: str,
        *,
        count: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with none; `listener` is its name in the log, `count` is called with the reason when one is refused."""
        self.limits = limits
        self.now = clock()
        self.clock = clock
        self._tally = Tally(listener, count)
        self._open: set[Connection] = set()
        self._held = 0
        # They keep nobody alive who has gone: an encrypted connection leaves a hundred kilobytes behind.
        self._idlers: deque[ref[Connection]] = deque()
        self._hoarders: deque[ref[Connection]] = deque()
        self._searched = {id(self._idlers): -_SEARCH, id(self._hoarders): -_SEARCH}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self) -> bool:
        """Whether there is room for one more, made if need be by ending the one that has kept us waiting longest."""
        return len(self._open) < self.limits.connections or self._evict(self._idlers)

    def add(self, connection: Connection) -> None:
        """Count it from now on."""
        self._open.add(connection)

    def remove(self, connection: Connection) -> None:
        """Count it no longer."""
        self._open.discard(connection)
        self.release(connection)

    def hold(self, connection: Connection, size: int) -> bool:
        """Note that it holds so many bytes more; whether there is room for them, made as in `admit`."""
        connection.held += size
        self._held += size
        while self._held > self.limits.buffered:
            if not self._evict(self._hoarders):
                return False
        return True

    def release(self, connection: Connection) -> None:
        """Note that it holds nothing any more."""
        self._held -= connection.held
        connection.held = 0

    def count(self, refusal: Refusal) -> None:
        """Note that somebody was turned away."""
        self._tally.add(refusal)

    async def watch(self) -> None:
        """Sweep until cancelled."""
        try:
            while True:
                self.sweep()
                await asyncio.sleep(_SWEEP)
        finally:
            self._tally.tell(self.now, last=True)

    def sweep(self) -> None:
        """End what is overdue, and tell what has been."""
        self.now = now = self.clock()
        for connection in tuple(self._open):
            refusal = connection.overdue(now)
            if refusal:
                self._tally.add(refusal)
                connection.end(refusal)
        self._tally.tell(now)

    def _evict(self, queue: deque[ref[Connection]]) -> bool:
        """End the one that has kept us waiting longest; False if none has for long enough."""
        now = self.clock()
        if not queue and now - self._searched[id(queue)] >= _SEARCH:
            self._searched[id(queue)] = now
            queue.extend(map(ref, self._patience_lost(now, holding=queue is self._hoarders)))
        while queue:
            connection = queue.popleft()()
            if connection is not None and connection in self._open and connection.waiting(now) > _PATIENCE:
                self._tally.add(MADE_ROOM)
                connection.end(MADE_ROOM)
                self.remove(connection)
                return True
        return False

    def _patience_lost(self, now: float, *, holding: bool) -> list[Connection]:
        """Those that may be ended: strangers before whoever has delivered something, the slowest first."""
        found = [one for one in self._open if one.waiting(now) > _PATIENCE and (one.held or not holding)]
        return sorted(found, key=lambda one: (one.served, -one.waiting(now)))
