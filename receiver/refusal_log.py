"""What the log says of deliveries that were refused: each of them, until they become a flood."""

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import structlog

log = structlog.get_logger("credhook.receiver")

#: Seconds for which lines are counted, and lines for one reason within them: whoever has no key can be refused
#: thousands of times a second, and should not fill the disk with it. `credhook_refusals` counts all.
PERIOD: Final = 60.0
MOST: Final = 20


class RefusalLog:
    """Writes a line for each refusal, so many for each reason in a minute.

    `unauthenticated`: how many deliveries had no signature that holds, and when the last of them came, by the clock;
    `outside_tolerance`: how many of these for their timestamp alone.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, from any beginning."""
        self._clock = clock
        self._began = clock()
        #: Reason → refusals within the period. The reasons are ours, and few.
        self._seen: dict[str, int] = {}
        self._untold: dict[str, int] = {}
        self.unauthenticated: tuple[int, float | None] = (0, None)
        self.outside_tolerance = 0

    def add(self, status: int, reason: str, *, outside_tolerance: bool = False, **more: str) -> None:
        """Say that a delivery was refused, or count it if that has been said often enough."""
        now = self._clock()
        if status == HTTPStatus.UNAUTHORIZED:
            self.unauthenticated = self.unauthenticated[0] + 1, now
            self.outside_tolerance += outside_tolerance
        if now - self._began >= PERIOD:
            self._began, self._untold = now, {one: seen - MOST for one, seen in self._seen.items() if seen > MOST}
            self._seen.clear()
        seen = self._seen[reason] = self._seen.get(reason, 0) + 1
        if seen > MOST:
            return
        before = self._untold.pop(reason, 0)
        if before:
            more["unlogged_before"] = str(before)
        if seen == MOST:
            more["unlogged"] = "further ones of this minute, see credhook_refusals_total"
        log.warning("delivery_refused", status=status, reason=reason, **more)
