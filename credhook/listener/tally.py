"""What a flood leaves in the log: a line a minute for each reason, with how often it was."""

from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from credhook.listener.refusals import Refusal

log = structlog.get_logger("credhook.listener")

#: Seconds between two lines for the same reason.
_PERIOD: Final = 60.0


class Tally:
    """Counts refusals, and tells of them now and then."""

    def __init__(self, listener: str, count: Callable[[str], None]) -> None:
        """`listener`: which one, for the log; `count`: called with each reason, for metrics."""
        self._listener = listener
        self._count = count
        self._untold: Counter[Refusal] = Counter()
        self._told: dict[Refusal, float] = {}

    def add(self, refusal: Refusal) -> None:
        """Note one."""
        self._count(refusal.reason)
        if refusal.event:
            self._untold[refusal] += 1

    def tell(self, now: float, *, last: bool = False) -> None:
        """Write a line for each reason whose turn it is; for all of them if it is the `last` time."""
        due = [one for one in self._untold if last or now - self._told.get(one, -_PERIOD) >= _PERIOD]
        for refusal in due:
            count = self._untold.pop(refusal)
            self._told[refusal] = now
            log.warning(refusal.event, listener=self._listener, reason=refusal.reason, count=count, hint=refusal.hint)
