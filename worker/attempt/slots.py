"""Slots: how many events are under way in one process, each with its clients for the platform.

Connections, credentials and the context for TLS are shared by all.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.threads import SyncApi
from credhook.worker.attempt.attempt import Attempt, Interruption

#: Calls that the handlers of one event make at a time; others wait for one of these to end.
CALLS: Final = 10
#: While a slot is held for less than so many seconds, events are taken ahead, so that no slot waits for Redis. What
#: waits for a slot for longer is handed back.
QUICK: Final = 1.0
#: As many are taken ahead as end within so many seconds, which is what takes need at full load, but for half of the
#: slots at most: 4,602 events a second became 5,476 (API of 50 ms, 400 slots), where before a quarter was taken ahead.
AHEAD: Final = 0.05


@dataclass(slots=True)
class Slot:
    """The clients of one event at a time.

    Attributes:
        fetching: for details, whose calls have been admitted when the event was taken.
        calling: for coroutine handlers, and for details of which nobody knew when the event was taken.
        in_thread: for plain handlers.
    """

    fetching: AsyncApi
    calling: AsyncApi
    in_thread: SyncApi
    #: When it was last taken, in monotonic seconds.
    since: float = 0.0


class _Waiting(NamedTuple):
    attempt: Attempt
    turn: "asyncio.Future[None]"
    since: float


class Slots:
    """So many slots, and the events that wait for one of them, in order."""

    def __init__(self, number: int, new_slot: Callable[[], Slot]) -> None:
        self._new_slot = new_slot
        self._number = number
        self._held = 0
        self._idle: list[Slot] = []
        self._waiting: deque[_Waiting] = deque()
        #: Seconds that a slot was held of late; nobody knows yet.
        self._pace = math.inf

    @property
    def places(self) -> int:
        """How many events the process may have: one for each slot, and a reserve while they move quickly."""
        if self._pace >= QUICK:
            return self._number
        return self._number + min(self._number // 2, math.ceil(self._number * AHEAD / max(AHEAD, self._pace)))

    async def acquire(self, attempt: Attempt) -> Slot:
        """A slot, once there is one."""
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
        """Let the next one have the slot."""
        self._idle.append(slot)
        held = time.monotonic() - slot.since
        if not math.isnan(held):  # Of one that was handed back it says nothing.
            self._pace = held if self._pace == math.inf else 0.9 * self._pace + 0.1 * held
        if self._waiting:
            self._waiting.popleft().turn.set_result(None)
        else:
            self._held -= 1

    def evict(self, older_than: float = QUICK) -> None:
        """Break off what has waited for a slot for so many seconds: other processes may have one."""
        until = time.monotonic() - older_than
        while self._waiting and self._waiting[0].since <= until:
            waiting = self._waiting.popleft()
            self._pace = math.inf
            self._held += 1  # Beyond the number, for as long as it takes to hand the event back.
            waiting.attempt.interrupt(Interruption.DRAINED)
            waiting.turn.set_result(None)
