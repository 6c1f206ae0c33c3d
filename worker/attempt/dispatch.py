"""The handlers of one event: beside each other, each recorded as it ends."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from credhook.store import GAVE_UP, TOOK
from credhook.worker import metrics
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.attempt.failures import of_handler
from credhook.worker.attempt.outcome import DONE, SKIPPED
from credhook.worker.attempt.retry import BACKOFF, Defer, GiveUp, after_handler, cause
from credhook.worker.attempt.running import HandlerTimeout, ThreadRunner, run
from credhook.worker.attempt.runs import Runs, StillRunning
from credhook.worker.attempt.slots import Slot
from credhook.worker.handlers.given import Context, FetchedEvent
from credhook.worker.handlers.handler import Handler
from credhook.worker.platform.circuit_breaker import CircuitBreaker
from credhook.worker.queue.claims import Claims
from credhook.worker.settings import WorkerSettings

_log = structlog.get_logger("credhook.worker")

#: What to do about a handler that was not done in time.
_TOO_LONG: Final = "give its calls time-outs, or raise CREDHOOK_HANDLER_TIMEOUT or the handler's own timeout="


class Dispatcher:
    """Runs handlers for fetched events."""

    def __init__(
        self,
        settings: WorkerSettings,
        claims: Claims,
        breaker: CircuitBreaker,
        states: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`states`: plugin's name → what its start-up returned; `clock`: seconds, by which handlers are timed."""
        self.runs = Runs(settings.concurrency)
        self.threads = ThreadRunner(settings.concurrency)
        self.claims = claims
        self.breaker = breaker
        self.states = states
        self.clock = clock
        #: Bound already: what is bound to it is made by itself, in a third of the time.
        self.log = _log.bind()
        #: Runs one handler; whoever traces puts a span around it.
        self.run_handler = run
        self.timeout = settings.handler_timeout
        self.max_attempts = settings.max_attempts

    async def record(self, attempt: Attempt, *names: str) -> None:
        """Write down the ends of these handlers that the ledger does not know of yet."""
        for name in names:
            how = attempt.records.get(name)
            if how is None:
                continue
            failure = attempt.uncounted().get(name)
            attempt.counted.add(name)  # Even if nobody waits any longer for what is written now.
            await self.claims.record(attempt.claim, name, how, attempt.pending, failure)
            attempt.records.pop(name, None)


@dataclass(slots=True)
class Dispatch:
    """The handlers of one event.

    Attributes:
        by: what they have in common with those of all other events.
        event: what they are given.
        attempt: takes in how each of them ends.
        slot: the clients to use.
        stale: whether a later state has been handled before.
        matching: the names of all that are to run for the event, those that ended in earlier attempts among them.
    """

    by: Dispatcher
    event: FetchedEvent
    attempt: Attempt
    slot: Slot
    stale: bool
    matching: Collection[str]
    _left: int = 0

    async def run(self, handlers: Sequence[Handler]) -> None:
        """Run these; return when all of them have ended."""
        self._left = len(handlers)
        if len(handlers) == 1:
            await self._run(handlers[0])
            return
        tasks: dict[str, asyncio.Task[None]] = {}
        for handler in handlers:
            before = tasks.get(handler.after or "")
            tasks[handler.name] = asyncio.create_task(self._run_after(before, handler))
        try:
            await asyncio.wait(tasks.values())
        except asyncio.CancelledError:
            for task in tasks.values():
                task.cancel()
            await asyncio.wait(tasks.values())
            raise
        for task in tasks.values():
            task.result()

    async def _run_after(self, before: "asyncio.Task[None] | None", handler: Handler) -> None:
        if before is not None:
            await asyncio.wait({before})
        await self._run(handler)
        self._left -= 1
        if self._left:  # The last one's end is written together with the event's.
            await self.by.record(self.attempt, handler.name)

    async def _run(self, handler: Handler) -> None:
        """Run one handler and take in how it ended."""
        attempt, claim, by = self.attempt, self.attempt.claim, self.by
        attempt.go_on()
        how = "" if claim.first else await by.claims.ended(claim, handler.name)
        if how:
            attempt.ends[handler.name] = how
            attempt.outcome = attempt.outcome.with_ended(handler.name, how)
            return
        attempt.go_on()
        if not self._may_begin(handler):
            return
        log = by.log.bind(**attempt.ids, handler=handler.name)
        api: Any = self.slot.calling if handler.is_async else self.slot.in_thread
        context = Context(
            api, log, f"{self.event.webhook_id}:{handler.name}", self.stale, by.states.get(handler.plugin)
        )
        try:
            wanted = handler.condition is None or bool(handler.condition(self.event))
        except Exception as error:  # noqa: BLE001  Other people's code.
            self._failed(handler, error)
            return
        if not wanted:
            self._ended(handler, SKIPPED)
            return
        timeout, began = handler.timeout or by.timeout, by.clock()
        failure = await by.run_handler(handler, self.event, context, timeout=timeout, threads=by.threads, runs=by.runs)
        seconds = by.clock() - began
        ms = round(seconds * 1000, 1)
        if not isinstance(failure, StillRunning):
            metrics.HANDLER_SECONDS.observe(seconds, handler.name)
        if failure is not None:
            self._failed(handler, failure, ms)
            return
        self._ended(handler, DONE, f"{TOOK}{ms:.0f}")
        attempt.ran[handler.name] = ms

    def _may_begin(self, handler: Handler) -> bool:
        """Whether the handler that this one is to run after has ended well; if it will not, this one has ended, too."""
        if handler.after is None or handler.after not in self.matching:
            return True
        needed = self.attempt.ends.get(handler.after) or self.attempt.claim.ended.get(handler.after)
        if needed is None:
            return False  # It comes again, and this one with it.
        if needed == SKIPPED:
            self._ended(handler, SKIPPED)
        elif needed.startswith(GAVE_UP):
            self._failed(handler, GiveUp(f"{handler.after} was given up"), counts=False)
        else:
            return True
        return False

    def _failed(
        self,
        handler: Handler,
        error: Exception,
        ms: float | None = None,
        *,
        counts: bool = True,
    ) -> None:
        """Take in that it has failed; it counts unless that only follows from what another handler has come to."""
        attempt, claim = self.attempt, self.attempt.claim
        decision = after_handler(
            error,
            claim.attempt,
            age=claim.age,
            max_attempts=handler.most_attempts(self.by.max_attempts),
            pause=self.by.breaker.pause(),
            backoff=handler.backoff or BACKOFF,
            give_up_on=handler.give_up_on,
        )
        final = isinstance(decision, GiveUp)
        hint = _TOO_LONG if isinstance(error, HandlerTimeout) else ""
        id_ = attempt.note(of_handler(handler, error, ms)) if counts else None
        what = {"error": cause(error), "exc_info": error, "final": final, "hint": hint, "ms": ms, "cause": id_}
        _log.warning("handler_failed", **attempt.ids, handler=handler.name, **what)
        if final:
            self._ended(handler, GAVE_UP + cause(error))
        else:
            self._count(handler, "postponed" if isinstance(decision, Defer) else "failed")
        attempt.outcome = attempt.outcome.after(handler.name, error, decision)

    def _ended(self, handler: Handler, how: str, recorded: str = "") -> None:
        self.attempt.ends[handler.name] = how
        self.attempt.records[handler.name] = recorded or how
        self._count(handler, "gave_up" if how.startswith(GAVE_UP) else how)

    def _count(self, handler: Handler, outcome: str) -> None:
        metrics.HANDLER_RUNS.add(handler.name, metrics.type_label(self.event.type), outcome)
