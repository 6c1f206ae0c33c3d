"""What stands in Redis where workers keep what they share, and cannot be read: counted, and named in the log once.

Whoever finds it goes on as if nothing stood there; what is written there next replaces it.
"""

from typing import Final

import structlog
from redis.exceptions import ResponseError

from credhook.worker import metrics

log = structlog.get_logger("credhook.worker")

#: Why it cannot be read, where that is not a matter of what it says.
ANOTHER_TYPE: Final = "it is of another Redis type"


class Unreadable:
    """What one reader has found so far."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def found(self, what: str, why: str, *, key: str) -> None:
        """Say so, unless it was so at the last look already.

        `what` it should have been, in a word, and `why` it cannot be read: nothing that it says itself, which is
        somebody else's.
        """
        if what in self._known:
            return
        self._known.add(what)
        metrics.UNREADABLE.add(what)
        log.warning("shared_unreadable", what=what, key=key, why=why, hint="who else writes to this Redis?")

    def mended(self, what: str) -> None:
        """It could be read, or is not there."""
        self._known.discard(what)


def is_of_another_type(error: object) -> bool:
    """Whether Redis says that a key holds another type than the command is for."""
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")
