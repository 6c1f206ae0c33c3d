"""How a run of a handler may end, or the fetch of the details, and what becomes of the handler then."""

from typing import Final, NamedTuple

from credhook.store import State
from credhook.worker.attempt.retry import DataGone, Defer, GiveUp, Retry

DONE, SKIPPED, GIVEN_UP = "done", "skipped", "dead"


class End(NamedTuple):
    """How a run of a handler, or the fetch, may end.

    Attributes:
        ended: what the record says of the handler from then on; "" if the handler is tried again.
        wait: ms until it is tried again.
        error: what it raises, and `decision`: what the retry policy says of that.
        spends: True if the run has spent an attempt.
        state: of the event, if this decides it.
    """

    ended: str = ""
    wait: int = 0
    error: Exception | None = None
    decision: Retry | GiveUp | None = None
    spends: bool = True
    state: State | None = None


_CHOSEN: Final = Retry(700)
ENDS: Final = {
    "done": End(DONE),
    "skipped": End(SKIPPED),
    "give up": End(GIVEN_UP, 0, GiveUp("no"), GiveUp("no")),
    "retry": End("", 700_000, _CHOSEN, _CHOSEN),
    "fail": End("", 5_000, ValueError(), Retry(5)),
    "defer": End("", 1_000, Defer(1), Defer(1), spends=False),
    # The rest are ends of the fetch alone.
    "paused": End("", 30_000, ValueError(), Defer(30), spends=False),
    "gone": End("", 0, DataGone(was_seen=True), GiveUp("lost"), state=State.DATA_GONE),
    "lost": End("", 0, ValueError(), GiveUp("lost"), state=State.DEAD),
}

#: What Hypothesis chooses from. The first choice lets an attempt succeed.
HANDLER_ENDS: Final = (*["done"] * 5, *["skipped", "give up"] * 2, "retry", "fail", "defer")
FETCH_ENDS: Final = (*["found"] * 10, "fail", "paused", "gone", "lost", "drained")
