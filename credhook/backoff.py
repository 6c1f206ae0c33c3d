"""How long to wait before another attempt: longer after each, up to a limit.

tenacity and stamina repeat a call, and own the loop around it. Here it is processes that wait, records in Redis, and
loops that listen for a signal meanwhile: they need the number alone. redis-py's backoffs always double, and draw their
jitter themselves, so that no test could know it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: Beyond so many attempts every limit has been reached, and a float would overflow.
_MOST_GROWTHS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that grow exponentially. Pure.

    Attributes:
        first: seconds to wait after the first attempt.
        longest: seconds that a wait grows to.
        growth: each wait is so many times as long as the one before.
        jitter: the part of each wait that chance decides: 0 is none of it, 1 is all ("full jitter").
    """

    first: float
    longest: float
    growth: float = 2.0
    jitter: float = 0.0

    def wait(self, attempt: int, chance: float = 1.0) -> float:
        """Seconds to wait after that attempt, counted from 1; `chance` is from 0, the shortest, to 1, the longest."""
        ceiling = min(self.first * self.growth ** min(attempt - 1, _MOST_GROWTHS), self.longest)
        return ceiling * (1 - self.jitter + self.jitter * chance)


class Waits:
    """The waits of one loop: each longer than the one before, until an attempt succeeds."""

    def __init__(self, backoff: Backoff, chance: Callable[[], float] = random.random) -> None:
        """`chance`: a number from 0 to 1, drawn anew for each wait."""
        self._backoff = backoff
        self._chance = chance
        self._attempts = 0

    def next(self) -> float:
        """Seconds to wait after one more attempt that failed."""
        self._attempts += 1
        return self._backoff.wait(self._attempts, self._chance())

    def reset(self) -> None:
        """Begin with the first again: an attempt has succeeded."""
        self._attempts = 0
