"""Slots: how many events are under way in one process, each with clients of its own for the platform.

httpx's pool slows down with the square of its connections: a pool of 100 did 96 requests a second where 100 clients of
one connection did 1,410, measured. Credentials and the context for TLS are shared by all.
"""

import asyncio
import math
import time
from collections import deque
from typing import Final, NamedTuple

from credhook.worker.api.auth import ClientCredentials
from credhook.worker.api.client import AsyncApi, SyncApi, shared_ssl_context
from credhook.worker.api.line import Line
from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.fleet.platform import Condition
from credhook.worker.settings import WorkerSettings

#: Connections that a slot opens at most: one, but for a handler that calls beside its own calls.
_CONNECTIONS: Final = 10
#: While a slot is held for less than so many seconds, events are taken ahead for a part of the slots, so that none
#: waits for Redis: 1,270 events a second became 1,530 (API of 50 ms). What waits for a slot for longer is handed back.
QUICK: Final = 1.0
RESERVES: Final = 4


class Slot:
    """The clients of one event at a time; each is made when it is first needed."""

    def __init__(self, settings: WorkerSettings, auth: ClientCredentials, condition: Condition) -> None:
        self._settings = settings
        self._auth = auth
        self._condition = condition
        self._fetching: AsyncApi | None = None
        self._calling: AsyncApi | None = None
        self._in_thread: SyncApi | None = None
        self.since = 0.0

    @property
    def fetching(self) -> AsyncApi:
        """For details, whose calls have been admitted when the event was taken."""
        if self._fetching is None:
            self._fetching = AsyncApi.from_settings(
                self._settings, auth=self._auth, gate=self._condition.fetches, transport=Line(shared_ssl_context())
            )
        return self._fetching

    @property
    def calling(self) -> AsyncApi:
        """For coroutine handlers, and for details of which nobody knew when the event was taken."""
        if self._calling is None:
            self._calling = AsyncApi.from_settings(
                self._settings, auth=self._auth, gate=self._condition.calls, max_connections=_CONNECTIONS
            )
        return self._calling

    @property
    def in_thread(self) -> SyncApi:
        """For plain handlers."""
        if self._in_thread is None:
            self._in_thread = SyncApi.from_settings(
                self._settings, auth=self._auth, gate=self._condition.calls, max_connections=_CONNECTIONS
            )
        return self._in_thread

    async def aclose(self) -> None:
        """Close the connections."""
        for client in (self._fetching, self._calling):
            if client is not None:
                await client.aclose()
        if self._in_thread is not None:
            self._in_thread.close()


class _Waiting(NamedTuple):
    attempt: Attempt
    turn: "asyncio.Future[None]"
    since: float


class Slots:
    """So many slots, and the events that wait for one of them, in order."""

    def __init__(self, settings: WorkerSettings, auth: ClientCredentials, condition: Condition) -> None:
        self._parts = settings, auth, condition
        self._number = settings.concurrency
        self._held = 0
        self._idle: list[Slot] = []
        self._waiting: deque[_Waiting] = deque()
        #: Seconds that a slot was held of late; nobody knows yet.
        self._pace = math.inf

    @property
    def places(self) -> int:
        """How many events the process may have: one for each slot, and a reserve while they move quickly."""
        return self._number + (self._number // RESERVES if self._pace < QUICK else 0)

    async def turn(self, attempt: Attempt) -> Slot:
        """A slot, once there is one."""
        if self._held < self._number and not self._waiting:
            self._held += 1
        else:
            waiting = _Waiting(attempt, asyncio.get_running_loop().create_future(), time.monotonic())
            self._waiting.append(waiting)
            await waiting.turn
        slot = self._idle.pop() if self._idle else Slot(*self._parts)
        slot.since = math.nan if attempt.interruption else time.monotonic()
        return slot

    def free(self, slot: Slot) -> None:
        """Let the next one have the slot."""
        self._idle.append(slot)
        held = time.monotonic() - slot.since
        if not math.isnan(held):  # Of one that was handed back it says nothing.
            self._pace = held if self._pace == math.inf else 0.9 * self._pace + 0.1 * held
        if self._waiting:
            self._waiting.popleft().turn.set_result(None)
        else:
            self._held -= 1

    def let_go(self, older_than: float = QUICK) -> None:
        """Break off what has waited for a slot for so many seconds: other processes may have one."""
        until = time.monotonic() - older_than
        while self._waiting and self._waiting[0].since <= until:
            waiting = self._waiting.popleft()
            self._pace = math.inf
            self._held += 1  # Beyond the number, for as long as it takes to hand the event back.
            waiting.attempt.interrupt(Interruption.DRAINED)
            waiting.turn.set_result(None)

    async def aclose(self) -> None:
        """Close the connections of all that are idle."""
        for slot in self._idle:
            await slot.aclose()
