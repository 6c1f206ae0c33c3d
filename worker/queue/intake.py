"""What a worker takes from the queue, as far as the platform is well and there is room.

While the queue has more than is asked for, the next take waits in line behind the one under way: Redis is then busy
with it while the worker is busy with the events of the last, and neither waits for the other. With an API that answers
at once, 4,044 events a second became 5,788, on two cores.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from redis.exceptions import RedisError

from credhook.worker.queue.claim import Claim, Taken
from credhook.worker.queue.claims import Claims

#: Takes that are under way or in line while the queue has plenty.
TAKES: Final = 2
#: Of four slots, how many urgent events get before all others, while there are any.
URGENT_SHARE: Final = 3, 4


class Intake:
    """Takes events, and has each of them started.

    Attributes:
        wanted_alone: whether events wait for a process that has nothing else under way, or this one was given such an
            event, as the last answer says; it is said before what the answer brings is started.
    """

    def __init__(
        self,
        claims: Claims,
        *,
        group: int,
        room: Callable[[], int],
        admit: Callable[[int], Awaitable[int]],
        give_back: Callable[[int], Awaitable[None]],
        start: Callable[[Claim], None],
    ) -> None:
        """Prepare.

        Args:
            claims: takes them.
            group: how many are asked for at a time, at most.
            room: how many more the worker has room for.
            admit: how many of so many the platform bears.
            give_back: told how many of these were not found.
            start: starts one that was taken.
        """
        self._claims = claims
        self._group = group
        self._room = room
        self._admit = admit
        self._give_back = give_back
        self._start = start
        self.wanted_alone = False
        self._takes: deque[asyncio.Task[tuple[Taken | None, bool]]] = deque()
        self._asked = 0
        #: Whether the last answer was as much as was asked for.
        self._plenty = False
        self._taken = 0

    @property
    def is_under_way(self) -> bool:
        """Whether something was asked for and is not here yet."""
        return bool(self._takes)

    @property
    def room(self) -> int:
        """How many more events may be asked for."""
        return self._room() - self._asked

    async def take(self, *, more: bool, idle: bool) -> Taken | None:
        """What comes next of all that was asked for; its events have been started.

        Args:
            more: whether to ask for more. There must be room, or something under way.
            idle: whether the process has nothing under way.

        Returns:
            What was taken, or None if the platform is to be left alone, or there is no room any more.

        Raises:
            RedisError, OSError: Redis cannot be asked.
        """
        most = TAKES if self._plenty and not idle else 1  # What an idle process is given may be to be worked on alone.
        while more and len(self._takes) < most and self.room > 0:
            wanted = min(self.room, self._group)
            self._asked += wanted
            self._takes.append(asyncio.create_task(self._take(wanted, idle=idle)))
        take, self._plenty = self._takes.popleft(), False
        taken, self._plenty = await take
        return taken

    async def finish(self) -> None:
        """Wait for what is under way: its events are ours as soon as Redis has given them."""
        await asyncio.gather(*self._takes, return_exceptions=True)
        self._takes.clear()

    async def _take(self, wanted: int, *, idle: bool) -> tuple[Taken | None, bool]:
        """What was taken, and whether it was as much as was wanted."""
        try:
            admitted = await self._admit(wanted)
            taken = None
            if admitted and self._room() > 0:  # It may have been told to stop meanwhile.
                taken = await self._claims.take(admitted, urgent=self._urgent(admitted), idle=idle)
                self.wanted_alone = taken.poison_candidates or any(claim.poison_candidate for claim in taken.claims)
                for claim in taken.claims:
                    self._start(claim)
            claims = taken.claims if taken else ()
            with suppress(RedisError, OSError):  # The bucket fills by itself.
                await self._give_back(admitted - len(claims))
            return taken, len(claims) == wanted and not (taken and taken.poison_candidates)
        finally:
            self._asked -= wanted

    def _urgent(self, number: int) -> int:
        """How many of the next so many events may be urgent ones before all others: three of four, over time."""
        share, whole = URGENT_SHARE
        before, after = self._taken * share // whole, (self._taken + number) * share // whole
        self._taken += number
        return after - before
