"""What one attempt at an event came to, put together from how each handler ended. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from worker.retry import GiveUp, Retry, cause

#: How a handler that will not run again is recorded: it has run, or this and the cause.
DONE: Final = "done"
GAVE_UP: Final = "dead: "


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where the event stands after the handlers so far.

    Attributes:
        again: seconds until the next attempt, the shortest that anything asks for; None if nothing does.
        error: the cause of that attempt.
        gave_up: what was given up and why, in this attempt or in an earlier one.
    """

    again: float | None = None
    error: str = ""
    gave_up: tuple[str, ...] = ()

    @classmethod
    def before(cls, ended: Mapping[str, str]) -> Self:
        """The outcome before any handler has run in this attempt.

        Args:
            ended: handler → how it ended, from the ledger.
        """
        reasons = [f"{name}: {how.removeprefix(GAVE_UP)}" for name, how in ended.items() if how.startswith(GAVE_UP)]
        return cls(gave_up=tuple(reasons))

    def after(self, handler: str, error: Exception, decision: Retry | GiveUp) -> Self:
        """The outcome once the handler has failed; an empty name stands for the fetch."""
        named = f"{handler}: {cause(error)}" if handler else cause(error)
        if isinstance(decision, GiveUp):
            return replace(self, gave_up=(*self.gave_up, named))
        wait = decision.after or 0.0
        if self.again is not None and self.again <= wait:
            return self
        return replace(self, again=wait, error=named)
