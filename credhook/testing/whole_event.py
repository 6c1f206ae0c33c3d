"""`run_event`: run all handlers of an event as a worker would, on a virtual clock.

The worker's own `Processor` decides about order, conditions, `after=` and retries. Its store is in memory.
"""

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from structlog.testing import capture_logs

from credhook.logs.places import without_ours
from credhook.settings import WorkerSettings
from credhook.store import GAVE_UP, State
from credhook.store.store import AsyncStore
from credhook.testing.fake_platform import ApiCall, FakeApi
from credhook.testing.running import UNSET, limit_of, noted_warnings, pause_after, run_on_new_loop, started
from credhook.worker.attempt.attempt import Attempt
from credhook.worker.attempt.processor import Clients, Processor
from credhook.worker.attempt.rehearsal import RehearsedClaims, RehearsedSnapshots, first_claim
from credhook.worker.handlers.arguments import Context, FetchedEvent
from credhook.worker.handlers.registry import Handler, Handlers, Registry

#: pytest shows the author's lines and not ours.
__tracebackhide__ = True

log = logging.getLogger("credhook.testing")


class EventRun(NamedTuple):
    """One run of a handler."""

    handler: str
    """The handler's name, `plugin.function`."""
    attempt: int
    """Number of this handler's run, counted from 1."""
    seconds: float
    """When the run began, in seconds of the virtual clock after the event came."""


@dataclass(frozen=True, slots=True)
class EventResult:
    """What became of an event. The repr omits everything that handlers wrote."""

    state: str
    """`done`, `waiting`, `dead`, `data_gone` or `unhandled`, as `credhook events list` shows it."""
    handlers: Mapping[str, str]
    """Handler → `done`, `skipped`, `waiting` or `dead`."""
    runs: tuple[EventRun, ...]
    """The runs, in the order in which they began."""
    error: str = ""
    """Why the event waits or was given up. Empty if done."""
    logged: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """The lines of handlers and of the worker, with `event` and `log_level`."""
    calls: tuple[ApiCall, ...] = ()
    """The calls to the platform, the fetch of the details included."""


class EventRunOptions(TypedDict, total=False):
    """The options of `run_event` and `arun_event`, explained at `arun_event`."""

    api: FakeApi | None
    attempts: int | Literal["until settled"]
    state: object


def run_event(event: FetchedEvent[Any], *plugins: Handlers[Any], **options: Unpack[EventRunOptions]) -> EventResult:
    """Run all handlers of an event as `arun_event` does.

    Raises:
        ValueError: see `arun_event`.
    """
    return run_on_new_loop(arun_event(event, *plugins, **options))


async def arun_event(
    event: FetchedEvent[Any],
    *plugins: Handlers[Any],
    api: FakeApi | None = None,
    attempts: int | Literal["until settled"] = "until settled",
    state: object = UNSET,
) -> EventResult:
    """Run the handlers of these plugins that want the event, and return what became of it.

    Between attempts the clock is moved instead of waiting. Details are fetched from the platform for each attempt.
    Functions of `on_error` and `on_give_up` run, and their errors, which a worker would log, are raised here.

    Args:
        event: made by `event(type)`. The platform answers fetches of its resource with its details.
        plugins: the `Handlers` of a worker.
        api: the platform. Default: a new one.
        attempts: maximum number of attempts at the event, from 1.
        state: `context.state` of all these plugins, or their start-up function. Required if they have one. If they
            have different ones: `{handlers: state, …}`.

    Raises:
        TypeError: an argument is no event, or no `Handlers`.
        ValueError: an option is wrong, or a state is missing.
    """
    if not isinstance(event, FetchedEvent):
        raise TypeError(f"a {type(event).__name__} is no event: make it with event(type)")
    if not plugins or not all(isinstance(plugin, Handlers) for plugin in plugins):
        raise TypeError("pass the plugins one by one, as in run_event(event, handlers, others)")
    limit = limit_of(attempts)
    platform = api or FakeApi()
    platform.know(event)
    before = len(platform.calls)
    async with AsyncExitStack() as stack:
        states = await stack.enter_async_context(started(plugins, state))
        lines = stack.enter_context(capture_logs())
        stack.enter_context(noted_warnings())
        processor = _Processor.of(Registry(plugins), platform, states)
        result = await processor.work(event, limit)
    for line in lines:
        if line["event"] == "hook_failed":
            raise line["exc_info"]
    return EventResult(*result, logged=tuple(lines), calls=platform.calls[before:])


@dataclass(eq=False)
class _Processor(Processor):
    """Makes the attempts at one event, and notes the runs."""

    noted: list[EventRun] = field(default_factory=list)

    @classmethod
    def of(cls, registry: Registry, api: FakeApi, states: Mapping[str, Any]) -> "_Processor":
        """Return a processor on the running loop."""
        store: Any = AsyncStore  # Nothing asks it.
        breaker: Any = SimpleNamespace(pause=lambda: 0.0)
        settings = WorkerSettings.model_construct(concurrency=max(1, len(registry.handlers)))
        claims, snapshots = RehearsedClaims(), RehearsedSnapshots(store, None)
        return cls(settings, claims, registry, breaker, Clients(api.plain, api.sync), snapshots, states)

    async def work(
        self, event: FetchedEvent[Any], attempts: int
    ) -> tuple[str, Mapping[str, str], tuple[EventRun, ...], str]:
        """Make up to so many attempts. Return state, ends of handlers, runs and error of an `EventResult`."""
        received = event.received_at
        claim = first_claim(event.webhook_id, event.type, event.resource_id, received, _ms(received + event.age))
        claims: Any = self.claims
        for _ in range(attempts):
            attempt = Attempt(claim)
            outcome, _ = await self.handle(attempt)
            settlement: Any = outcome  # A rehearsed claim is never lost.
            if settlement.state is not State.WAITING:
                break
            claim = claims.next_claim(claim, settlement)
        self.snapshots.recent.drop(event.webhook_id)
        ended = {**attempt.claim.ended, **attempt.statuses}
        ends = {handler.name: _end(ended.get(handler.name, "waiting")) for handler in attempt.wanted}
        return settlement.state.value, ends, tuple(self.noted), settlement.error

    def _context(self, attempt: Attempt, handler: Handler, number: int) -> Context[Any, Any]:
        if handler.types:  # The others are functions of `on_error` and `on_give_up`.
            milliseconds = attempt.claim.now - _ms(attempt.claim.received_at)
            self.noted.append(EventRun(handler.name, number, milliseconds / 1_000))
        return super()._context(attempt, handler, number)

    def _fail(
        self, attempt: Attempt, handler: Handler, error: Exception, ms: float | None = None, *, is_run: bool = True
    ) -> None:
        breaker: Any = self.breaker
        breaker.pause = lambda: pause_after(error)  # As a new circuit breaker would after this error.
        super()._fail(attempt, handler, error, ms, is_run=is_run)
        breaker.pause = lambda: 0.0
        shown = type(error), error, without_ours(error.__traceback__)
        log.warning("%s failed", handler.name, exc_info=shown)  # Shown if the test fails.


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1_000)


def _end(status: str) -> str:
    return "dead" if status.startswith(GAVE_UP) else status
