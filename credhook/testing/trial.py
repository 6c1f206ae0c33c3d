"""A handler and an event, tried as a worker tries them: the same runner, the same decisions, a clock of their own."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import structlog
from structlog.testing import LogCapture

from credhook.logs.places import places
from credhook.sandbox.events import EVENTS
from credhook.store import State
from credhook.testing.crashes import CrashInjector, end
from credhook.testing.platform.api import FakeApi
from credhook.testing.platform.breaker import ClockedBreaker
from credhook.testing.platform.transport import ApiCall
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.threads import SyncApi
from credhook.worker.attempt.details import is_stale, version
from credhook.worker.attempt.outcome import Outcome
from credhook.worker.attempt.retry import BACKOFF, after_handler, cause
from credhook.worker.attempt.running import HandlerTimeout, Runs, ThreadRunner, run
from credhook.worker.handlers.handler import Handler
from credhook.worker.handlers.types import Context, FetchedEvent
from credhook.worker.queue.claim import Settlement

#: Places of an error that a result shows.
_MOST_PLACES: Final = 4
#: Status, without regard to case → an event that announces it.
_ANNOUNCED: Final = {rule.status.casefold(): event_type for event_type, rule in EVENTS.items()}


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker would have made of it. The repr shows nothing that the handler wrote, said or sent.

    Attributes:
        outcome: "done"; "skipped", its condition did not want the event; "waiting" for another attempt, "timed_out" and
            waiting for one; or "dead", given up.
        retry_in: seconds until the next attempt; None if there is none.
        attempts: how often it was run, and died, in all.
        cause: the error in the words that a worker stores: its class, or the reason of a `GiveUp`. Empty when done.
        at: the last places that the error came through, `folder/file:line function`, innermost last.
        error: what it raised in the last of its runs, or None.
        logged: what it wrote to `context.log`, a mapping for each line, with `event` and `log_level`.
        calls: what it asked of the platform.
    """

    outcome: Literal["done", "skipped", "waiting", "timed_out", "dead"]
    retry_in: float | None
    attempts: int
    cause: str = ""
    at: tuple[str, ...] = ()
    error: Exception | None = field(default=None, repr=False)
    logged: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    calls: tuple[ApiCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a trial goes by; `timeout` is in seconds of real time, `chance` from 0 to 1 and drawn for each decision."""

    timeout: float
    max_attempts: int
    stale: bool
    state: object
    chance: Callable[[], float]


class Trial:
    """One event at one handler, from attempt to attempt. It is made on the event loop that it runs on."""

    def __init__(self, handler: Handler, event: FetchedEvent, api: FakeApi, conditions: Conditions) -> None:
        self._handler = handler
        self._event = event
        self._conditions = conditions
        self._api = api
        self._calls_before = len(api.calls)
        #: Seconds since the event was received.
        self._now = 0.0
        self._breaker = ClockedBreaker(lambda: self._now, conditions.chance)
        self._logged = LogCapture()
        self._runs = 0
        self._skipped = False
        self._error: Exception | None = None
        self._settlement = Settlement(State.WAITING)
        api.know(event)

    @property
    def is_settled(self) -> bool:
        """Whether a worker would not run it again."""
        return self._settlement.state is not State.WAITING

    async def attempt(self) -> None:
        """Run it once more, after the pause that it has to wait for, and decide what follows."""
        self._now += self._settlement.wait
        self._error = await self._run(self._handler) if self._is_wanted() else None
        outcome = Outcome()
        if self._error is not None:
            conditions = self._conditions
            decision = after_handler(
                self._error,
                self._event.attempt,
                max_attempts=conditions.max_attempts,
                age=self._now,
                pause=self._breaker.pause(),
                backoff=self._handler.backoff or BACKOFF,
                give_up_on=self._handler.give_up_on,
                chance=conditions.chance,
            )
            outcome = outcome.after(self._handler.name, self._error, decision)
        self._settlement = outcome.settlement()
        if self._settlement.spend:
            self._event = replace(self._event, attempt=self._event.attempt + 1)

    def _is_wanted(self) -> bool:
        condition = self._handler.condition
        self._skipped = condition is not None and not condition(self._event)
        return not self._skipped

    async def crash(self, injector: CrashInjector) -> None:
        """Run it in a process that dies: when `injector` says, or else when it has ended and nobody knows yet."""

        async def watched(event: FetchedEvent, context: Context[Any, Any]) -> None:
            await injector.run(self._handler.function(event, context))

        handler = replace(self._handler, function=watched) if self._handler.is_async else self._handler
        self._error = await self._run(handler)
        self._event = replace(self._event, attempt=self._event.attempt + 1)

    def result(self) -> Result:
        """What it has come to so far."""
        waits, error = not self.is_settled, self._error
        names = {State.DONE: "skipped" if self._skipped else "done", State.DEAD: "dead", State.WAITING: "waiting"}
        outcome: Any = "timed_out" if waits and isinstance(error, HandlerTimeout) else names[self._settlement.state]
        return Result(
            outcome=outcome,
            retry_in=self._settlement.wait if waits else None,
            attempts=self._runs,
            cause="" if error is None else cause(error),
            at=() if error is None else tuple(places(error, _MOST_PLACES)),
            error=error,
            logged=tuple(self._logged.entries),
            calls=self._api.calls[self._calls_before :],
        )

    async def _run(self, handler: Handler) -> Exception | None:
        """As if in a process of its own: what an earlier run has left hanging keeps nobody out."""
        self._runs += 1
        api = self._api.guarded(self._breaker)
        given = context(
            handler,
            self._event,
            api if handler.is_async else SyncApi(api),
            log=logger(self._logged),
            stale=self._conditions.stale,
            state=self._conditions.state,
        )
        before = asyncio.all_tasks()
        error = await run(
            handler, self._event, given, timeout=self._conditions.timeout, threads=ThreadRunner(1), runs=Runs(1)
        )
        if isinstance(error, HandlerTimeout):  # What hangs would keep the end of the test's loop waiting.
            await end(asyncio.all_tasks() - before)
        return error


def context(
    handler: Handler,
    event: FetchedEvent,
    api: AsyncApi | SyncApi,
    *,
    log: structlog.stdlib.BoundLogger,
    stale: bool,
    state: object,
) -> Context[Any, Any]:
    """What a worker gives this handler for this event."""
    bound = log.bind(
        webhook_id=event.webhook_id,
        event_type=event.type,
        resource_id=event.resource_id,
        attempt=event.attempt,
        handler=handler.name,
    )
    return Context(api, bound, f"{event.webhook_id}:{handler.name}", stale, state)


def logger(capture: LogCapture) -> structlog.stdlib.BoundLogger:
    """A logger whose lines end up there."""
    wrapped: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        None, processors=[capture], wrapper_class=structlog.stdlib.BoundLogger
    )
    return wrapped


def is_overtaken(event: FetchedEvent) -> bool:
    """Whether its details tell of a later state, of which the handlers are then taken to have seen the event."""
    announced = _ANNOUNCED.get(event.details.status.casefold(), "")
    return is_stale(version(event.type, None), version(announced, None))
