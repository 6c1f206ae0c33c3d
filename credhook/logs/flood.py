"""Keep a flood of like log lines from filling the disk: write some of each kind in a minute, and count the rest."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

_PERIOD_SECONDS: Final = 60.0


class FloodGuard:
    """Allows a limited number of log lines of each kind in a minute."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow `limit` lines of each kind; `clock` returns monotonic seconds."""
        self._limit = limit
        self._clock = clock
        self._period_began = clock()
        self._seen = Counter[str]()
        self._dropped = Counter[str]()

    def admit(self, kind: str) -> dict[str, int] | None:
        """Return fields for the line: `unlogged_before` if lines before it were dropped. None: drop this line, too."""
        now = self._clock()
        if now - self._period_began >= _PERIOD_SECONDS:
            self._period_began = now
            self._seen.clear()
        self._seen[kind] += 1
        if self._seen[kind] > self._limit:
            self._dropped[kind] += 1
            return None
        dropped = self._dropped.pop(kind, 0)
        return {"unlogged_before": dropped} if dropped else {}
