"""Slots: the limit on events in progress in one process. Each slot has its own clients for the platform."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.attempt.attempt import Attempt, Interruption

#: Concurrent calls of the handlers of one event. Further calls wait.
MAX_CALLS: Final = 10
#: While events hold a slot for less than this, more events are claimed than there are slots, so that no slot waits
#: for Redis. An event that waits longer than this for a slot is handed back.
QUICK_SECONDS: Final = 1.0
#: The reserve is the number of events that end within this time, but at most half of the slots.
RESERVE_SECONDS: Final = 0.05


@dataclass(slots=True)
class Slot:
    """The platform clients for one event at a time. They share connections, credentials and TLS context.

    Attributes:
        fetching: fetches details. The rate limit has counted the call already.
        calling: for coroutine handlers, and for fetches that the rate limit has not counted.
        in_thread: for plain functions.
        since: when the slot was acquired, in monotonic seconds.
    """

    fetching: AsyncApi
    calling: AsyncApi
    in_thread: SyncApi
    since: float = 0.0


class _Waiting(NamedTuple):
    attempt: Attempt
    turn: "asyncio.Future[None]"
    since: float


class Slots:
    """A fixed number of slots, and the events that wait for one, in order."""

    def __init__(self, number: int, new_slot: Callable[[], Slot]) -> None:
        self._new_slot = new_slot
        self._number = number
        self._held = 0
        self._idle: list[Slot] = []
        self._waiting: deque[_Waiting] = deque()
        #: Moving average of the seconds that a slot is held.
        self._pace = math.inf

    @property
    def places(self) -> int:
        """Return how many events the process may hold: one for each slot, and a reserve while events end quickly."""
        if self._pace >= QUICK_SECONDS:
            return self._number
        reserve = math.ceil(self._number * RESERVE_SECONDS / max(RESERVE_SECONDS, self._pace))
        return self._number + min(self._number // 2, reserve)

    async def acquire(self, attempt: Attempt) -> Slot:
        """Wait for a free slot and return it."""
        if self._held < self._number and not self._waiting:
            self._held += 1
        else:
            waiting = _Waiting(attempt, asyncio.get_running_loop().create_future(), time.monotonic())
            self._waiting.append(waiting)
            await waiting.turn
        slot = self._idle.pop() if self._idle else self._new_slot()
        slot.since = math.nan if attempt.interruption else time.monotonic()
        return slot

    def release(self, slot: Slot) -> None:
        """Pass the slot on to the next event."""
        self._idle.append(slot)
        held = time.monotonic() - slot.since
        if not math.isnan(held):  # Events that were handed back do not count.
            self._pace = held if self._pace == math.inf else 0.9 * self._pace + 0.1 * held
        if self._waiting:
            self._waiting.popleft().turn.set_result(None)
        else:
            self._held -= 1

    def evict(self, older_than: float = QUICK_SECONDS) -> None:
        """Interrupt events that have waited this many seconds: another process may have a free slot."""
        until = time.monotonic() - older_than
        while self._waiting and self._waiting[0].since <= until:
            waiting = self._waiting.popleft()
            self._pace = math.inf
            self._held += 1  # Above the limit for as long as it takes to hand the event back.
            waiting.attempt.interrupt(Interruption.DRAINED)
            waiting.turn.set_result(None)
