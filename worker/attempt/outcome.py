"""What one attempt at an event came to, put together from how each handler ended. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from credhook.store import GAVE_UP, State
from credhook.worker.attempt.retry import DataGone, Defer, GiveUp, Retry, cause
from credhook.worker.queue.claim import Settlement

#: How a handler is recorded that has run; for one that was given up, see `GAVE_UP`.
DONE: Final = "done"
#: Or its condition did not want the event.
SKIPPED: Final = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where the event stands after the handlers so far.

    Attributes:
        again: seconds until the next attempt, the shortest that anything asks for; None if nothing does.
        error: the cause of that attempt.
        gave_up: what was given up and why, in this attempt or in an earlier one.
        data_gone: whether it was given up for presented data that is gone.
        spent: whether anything failed that counts as an attempt: a platform that is known to be down does not.
        unhandled: whether there is no handler for it here.
        whole: whether it was given up whatever its handlers may say, those that are not here among them.
    """

    again: float | None = None
    error: str = ""
    gave_up: tuple[str, ...] = ()
    data_gone: bool = False
    spent: bool = False
    unhandled: bool = False
    whole: bool = False

    @staticmethod
    def before(ended: Mapping[str, str]) -> "Outcome":
        """The outcome before any handler has run in this attempt; `ended`: how handlers had, from the ledger."""
        outcome = NOTHING_YET
        for name, how in ended.items():
            outcome = outcome.with_ended(name, how)
        return outcome

    def with_ended(self, handler: str, how: str) -> Self:
        """The outcome with the end of a handler that the ledger knows of."""
        if not how.startswith(GAVE_UP):
            return self
        return replace(self, gave_up=(*self.gave_up, f"{handler}: {how.removeprefix(GAVE_UP)}"))

    def after(self, handler: str, error: Exception, decision: Retry | GiveUp) -> Self:
        """The outcome once the handler has failed; an empty name stands for the fetch."""
        named = f"{handler}: {cause(error)}" if handler else cause(error)
        if isinstance(decision, GiveUp):
            data_gone = self.data_gone or isinstance(error, DataGone)
            return replace(self, gave_up=(*self.gave_up, named), data_gone=data_gone, whole=self.whole or not handler)
        marked = replace(self, spent=self.spent or not isinstance(decision, Defer))
        wait = decision.after or 0.0
        if self.again is not None and self.again <= wait:
            return marked
        return replace(marked, again=wait, error=named)

    def settlement(self, missing: tuple[str, ...] = ()) -> Settlement:
        """How the event is to be written down; without the handlers that are `missing` here it has not ended."""
        if self.unhandled:
            # Nothing was tried: workers with and without the handler may pass it on for as long as a deploy takes.
            return Settlement(State.UNHANDLED, "NoHandler", spend=False, only=missing)
        if self.again is not None:
            return Settlement(State.WAITING, self.error, wait=self.again, spend=self.spent)
        if missing and not self.whole:
            return Settlement(State.UNHANDLED, "NoHandler", spend=False, only=missing)
        if self.gave_up:
            return Settlement(State.DATA_GONE if self.data_gone else State.DEAD, self.gave_up[0])
        return _WELL


_WELL: Final = Settlement(State.DONE)
#: The outcome before anything has come of an attempt.
NOTHING_YET: Final = Outcome()
