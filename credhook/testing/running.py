"""`run` and `arun`: run a handler as a worker would, and return what the worker would do next.

The runner and the retry policy are the worker's own. The clock is moved instead of waiting between attempts.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack

import structlog
from structlog.testing import LogCapture

from credhook.logs.places import places
from credhook.sandbox.events import EVENTS
from credhook.store import State
from credhook.testing.crashes import CrashPoint, end_tasks
from credhook.testing.fake_platform import ApiCall, FakeApi, FakeBreaker
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.attempt import running
from credhook.worker.attempt.attempt import Outcome
from credhook.worker.attempt.details import is_stale, version
from credhook.worker.attempt.retry import BACKOFF, after_handler, error_text
from credhook.worker.handlers.registry import Handler, Handlers
from credhook.worker.handlers.types import Context, FetchedEvent
from credhook.worker.queue.claims import Settlement
from credhook.worker.settings import WorkerSettings

T = TypeVar("T")
Function = Callable[..., Any]

_UNSET: Final = object()
#: Attempts of "until settled". A platform that stays down defers an event for a day.
_MAX_ATTEMPTS: Final = 10_000
_MAX_PLACES: Final = 4
#: Status → an event type that announces it.
_ANNOUNCED: Final = {rule.status.casefold(): event_type for event_type, rule in EVENTS.items()}


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker would do. The repr omits everything that the handler wrote, logged or sent.

    Attributes:
        outcome: "done"; "skipped" by its condition; "waiting" for another attempt; "timed_out" and waiting; or "dead".
        retry_in: seconds until the next attempt, or None.
        attempts: number of runs, including those that crashed.
        cause: the error as a worker stores it: its class, or the reason of a `GiveUp`. Empty if done.
        at: the last places of the error's traceback, `folder/file:line function`, innermost last.
        error: the exception of the last run, or None.
        logged: the lines written to `context.log`, with `event` and `log_level`.
        calls: the calls to the platform.
    """

    outcome: Literal["done", "skipped", "waiting", "timed_out", "dead"]
    retry_in: float | None
    attempts: int
    cause: str = ""
    at: tuple[str, ...] = ()
    error: Exception | None = field(default=None, repr=False)
    logged: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    calls: tuple[ApiCall, ...] = ()


class RunOptions(TypedDict, total=False):
    """The options of `run` and `arun`, explained at `arun`."""

    api: FakeApi | None
    attempts: int | Literal["until settled"]
    crash_after: int | None
    timeout: float | None
    max_attempts: int | None
    stale: bool | None
    state: object
    chance: Callable[[], float]


def run(handler: Handler | Function, event: FetchedEvent, **options: Unpack[RunOptions]) -> Result:
    """Run a handler as `arun` does, where no event loop runs: in a plain test, unittest, or a script.

    Raises:
        RuntimeError: an event loop runs here.
        ValueError: see `arun`.
    """
    return run_on_new_loop("arun", lambda: arun(handler, event, **options))


async def arun(
    handler: Handler | Function,
    event: FetchedEvent,
    *,
    api: FakeApi | None = None,
    attempts: int | Literal["until settled"] = 1,
    crash_after: int | None = None,
    timeout: float | None = None,  # noqa: ASYNC109  The worker's timeout, not the caller's.
    max_attempts: int | None = None,
    stale: bool | None = None,
    state: object = _UNSET,
    chance: Callable[[], float] = lambda: 0.5,
) -> Result:
    """Run a handler for an event as a worker would, and return what the worker would do next.

    Attempts follow each other without waiting. The details stay the same; a worker would fetch them for each attempt.

    Args:
        handler: a function, decorated or not, or a `Handler`.
        event: its first argument. The platform answers fetches of its resource with its details.
        api: the platform of `context.api`. Default: a new one.
        attempts: maximum number of attempts. "until settled" runs the handler until it is done or given up.
        crash_after: let the process die after that await, counted from 1, or else at the handler's end. Then run the
            handler again from the start. A plain function dies at its end.
        timeout: seconds of real time for one run. Default: as in a worker.
        max_attempts: attempts after which the worker gives up. Default: as in a worker.
        stale: `context.stale`. Default: True if the details show a later state than the event's.
        state: `context.state`. Required if the plugin has a start-up function.
        chance: a number from 0 to 1 for each wait that the worker randomises. Default: always the middle.

    Raises:
        ValueError: the handler is not registered for the event's type, or is no handler; a number is below 1; or the
            state is missing.
    """
    if (attempts != "until settled" and attempts < 1) or (crash_after is not None and crash_after < 1):
        raise ValueError("attempts and crash_after are counted from 1")
    subject = handler_of(handler)
    if state is _UNSET:
        for plugin in _plugins(subject.function):
            if plugin.handler_of(subject.function) and plugin.startup_function is not None:
                raise ValueError(f"{plugin.name} has a start-up function: say state=…, what it would have returned")
        state = None
    api = FakeApi() if api is None else api
    trial = Trial(
        subject, event, api, timeout=timeout, max_attempts=max_attempts, stale=stale, state=state, chance=chance
    )
    if crash_after is not None:
        await trial.crash(crash_after + 1)
    await trial.settle(_MAX_ATTEMPTS if attempts == "until settled" else attempts)
    return trial.result()


class Trial:
    """One event at one handler, over several attempts, on the running event loop."""

    def __init__(
        self,
        handler: Handler,
        event: FetchedEvent,
        api: FakeApi,
        *,
        timeout: float | None = None,
        max_attempts: int | None = None,
        stale: bool | None = None,
        state: object = None,
        chance: Callable[[], float] = lambda: 0.5,
    ) -> None:
        """See `arun` for the options.

        Raises:
            ValueError: the handler is not registered for the event's type.
        """
        if event.type not in handler.types:
            raise ValueError(f"{handler.name} would not run for {event.type}: it is registered for other types")
        attempts, seconds = (WorkerSettings.model_fields[name].default for name in ("max_attempts", "handler_timeout"))
        if stale is None:
            shown = _ANNOUNCED.get(event.details.status.casefold(), "")
            stale = is_stale(version(event.type, None), version(shown, None))
        self._handler = handler
        self._event = event
        self._api = api
        self._timeout = timeout or handler.timeout or seconds
        self._max_attempts = max_attempts or handler.max_attempts(attempts)
        self._stale = stale
        self._state = state
        self._chance = chance
        self._calls_before = len(api.calls)
        #: Seconds since the event was received.
        self._now = 0.0
        self._breaker = FakeBreaker(lambda: self._now, chance)
        self._log = LogCapture()
        self._runs = 0
        self._skipped = False
        self._error: Exception | None = None
        self._settlement = Settlement(State.WAITING)
        api.know(event)

    async def settle(self, attempts: int = _MAX_ATTEMPTS) -> None:
        """Make attempts until the handler is done or given up, but no more than this."""
        for _ in range(attempts):
            await self._attempt()
            if self._settlement.state is not State.WAITING:
                return

    async def _attempt(self) -> None:
        self._now += self._settlement.wait
        condition = self._handler.condition
        self._skipped = condition is not None and not condition(self._event)
        self._error = None if self._skipped else await self._run(self._handler)
        outcome = Outcome()
        if self._error is not None:
            decision = after_handler(
                self._error,
                self._event.attempt,
                max_attempts=self._max_attempts,
                age=self._now,
                pause=self._breaker.pause(),
                backoff=self._handler.backoff or BACKOFF,
                give_up_on=self._handler.give_up_on,
                chance=self._chance,
            )
            outcome = outcome.after(self._handler.name, self._error, decision)
        self._settlement = outcome.settlement()
        if self._settlement.spend:
            self._event = replace(self._event, attempt=self._event.attempt + 1)

    async def crash(self, at: int | None = None) -> CrashPoint:
        """Run the handler in a process that dies at the n-th await, or else at the handler's end."""
        point = CrashPoint(at, own=getattr(inspect.unwrap(self._handler.function), "__code__", None))

        async def crashing(event: FetchedEvent, context: Context[Any, Any]) -> None:
            await point.run(self._handler.function(event, context))

        handler = replace(self._handler, function=crashing) if self._handler.is_async else self._handler
        self._error = await self._run(handler)
        self._event = replace(self._event, attempt=self._event.attempt + 1)
        return point

    async def _run(self, handler: Handler) -> Exception | None:
        self._runs += 1
        api = self._api.guarded(self._breaker)
        context = make_context(
            handler,
            self._event,
            api if handler.is_async else SyncApi(api),
            capture=self._log,
            stale=self._stale,
            state=self._state,
        )
        before = asyncio.all_tasks()
        threads, runs = running.ThreadRunner(1), running.Runs(1)  # As in a new process.
        error = await running.run(handler, self._event, context, timeout=self._timeout, threads=threads, runs=runs)
        if isinstance(error, running.HandlerTimeout):  # A task that hangs would delay the end of the test's loop.
            await end_tasks(asyncio.all_tasks() - before)
        return error

    def result(self) -> Result:
        """Return the result so far."""
        error, is_waiting = self._error, self._settlement.state is State.WAITING
        outcome: Any = "waiting" if is_waiting else "dead" if self._settlement.state is State.DEAD else "done"
        if self._skipped:
            outcome = "skipped"
        elif is_waiting and isinstance(error, running.HandlerTimeout):
            outcome = "timed_out"
        return Result(
            outcome=outcome,
            retry_in=self._settlement.wait if is_waiting else None,
            attempts=self._runs,
            cause="" if error is None else error_text(error),
            at=() if error is None else tuple(places(error, _MAX_PLACES)),
            error=error,
            logged=tuple(self._log.entries),
            calls=self._api.calls[self._calls_before :],
        )


def make_context(
    handler: Handler, event: FetchedEvent, api: AsyncApi | SyncApi, *, capture: LogCapture, stale: bool, state: object
) -> Context[Any, Any]:
    """Return the context that a worker gives this handler. Its log lines end up in `capture`."""
    log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        None,
        processors=[capture],
        wrapper_class=structlog.stdlib.BoundLogger,
        webhook_id=event.webhook_id,
        event_type=event.type,
        resource_id=event.resource_id,
        attempt=event.attempt,
        handler=handler.name,
    )
    return Context(api, log.bind(), f"{event.webhook_id}:{handler.name}", stale, state)


def handler_of(handler: Handler | Function) -> Handler:
    """Return the registered handler of a function; for an undecorated function, one of a plugin `test` for all types.

    Raises:
        ValueError: the function cannot be a handler.
    """
    if isinstance(handler, Handler):
        return handler
    for plugin in _plugins(handler):
        if found := plugin.handler_of(handler):
            return found
    undecorated: Any = Handlers("test")
    undecorated.on("*")(handler)
    (found,) = undecorated
    assert isinstance(found, Handler)  # noqa: S101  For mypy.
    return found


def _plugins(function: Function) -> list[Handlers]:
    return [value for value in getattr(function, "__globals__", {}).values() if isinstance(value, Handlers)]


def run_on_new_loop(awaitable: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on an event loop of its own.

    Raises:
        RuntimeError: an event loop runs here and would be blocked. The message names the coroutine to await instead.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with closing(asyncio.new_event_loop()) as loop:
            try:
                return loop.run_until_complete(begin())
            finally:
                loop.run_until_complete(end_tasks(asyncio.all_tasks(loop)))
                loop.run_until_complete(loop.shutdown_asyncgens())
    raise RuntimeError(f"an event loop runs here already: await {awaitable}(…) instead")
