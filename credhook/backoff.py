"""Waits between attempts that grow up to a limit: numbers of seconds, for processes, records in Redis and loops."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: Growths after which a wait stops growing, since more could overflow a float.
_MAX_GROWTHS: Final = 64
#: Largest factor between two waits.
_MAX_GROWTH: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that grow exponentially."""

    first: float
    """Seconds to wait after the first attempt."""
    longest: float
    """Seconds that a wait grows to."""
    growth: float = 2.0
    """Factor between two waits."""
    jitter: float = 0.0
    """The random share of each wait, from 0 (none) to 1 ("full jitter")."""

    def __post_init__(self) -> None:
        if not (
            0 <= self.first <= self.longest < math.inf and 1 <= self.growth <= _MAX_GROWTH and 0 <= self.jitter <= 1
        ):
            raise ValueError("Backoff: 0 <= first <= longest in seconds, growth from 1 to 1,000, jitter from 0 to 1")

    def wait(self, attempt: int, chance: float = 1.0) -> float:
        """Return seconds to wait after an attempt, counted from 1. `chance`: 0 (shortest wait) to 1 (longest)."""
        ceiling = min(self.first * self.growth ** min(attempt - 1, _MAX_GROWTHS), self.longest)
        return ceiling * (1 - self.jitter + self.jitter * chance)


class Waits:
    """The waits of one loop: each longer than the one before, until an attempt succeeds."""

    def __init__(
        self,
        backoff: Backoff,
        chance: Callable[[], float] = random.random,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start before the first attempt. `chance` returns a random number from 0 to 1; `clock`: monotonic seconds."""
        self._backoff = backoff
        self._chance, self._clock = chance, clock
        self._attempts, self._failing_since = 0, 0.0

    def next(self) -> float:
        """Return seconds to wait after one more failed attempt."""
        self._failing_since = self._failing_since if self._attempts else self._clock()
        self._attempts += 1
        return self._backoff.wait(self._attempts, self._chance())

    def reset(self) -> float:
        """Start again with the first wait. Return the seconds since the first failed attempt, or 0.0 if none failed."""
        failed, self._attempts = self._attempts, 0
        return self._clock() - self._failing_since if failed else 0.0
