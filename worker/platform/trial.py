"""Whether the platform takes our credentials: until it is known, one call is made at a time.

At its start, and whenever a token was refused, a process does not know, and could send a hundred calls to learn that
each of them is answered 401. So one call tries, the others wait for what it comes to, and all go on as soon as any call
is answered otherwise. That costs the time of one answer; where no answer comes, another one tries each second.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

#: Seconds that others wait for one call's answer; then the next one tries as well.
LASTS: Final = 1.0


class Trial:
    """One process's trial of its credentials, on one event loop.

    Attributes:
        is_over: the platform takes them, or has other trouble: calls wait for nothing here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells monotonic seconds."""
        self._clock = clock
        self.is_over = False
        self._until = 0.0
        self._turn_over = asyncio.Event()

    def begin_turn(self) -> bool:
        """Be the one that tries, unless another is."""
        now = self._clock()
        if now < self._until:
            return False
        self._until, self._turn_over = now + LASTS, asyncio.Event()
        return True

    async def wait(self) -> None:
        """Return when there may be a turn to begin, or none is needed any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._until - self._clock()):
                await self._turn_over.wait()

    def end_turn(self) -> None:
        """Let the next one try."""
        self._until = 0.0
        self._turn_over.set()

    def end(self) -> None:
        """Let everyone call."""
        if not self.is_over:
            self.is_over = True
            self.end_turn()

    def begin_again(self) -> None:
        """A token was refused."""
        self.is_over = False
