"""`run` and `arun`: run a handler as a worker would, and return what the worker would do next.

The runner and the retry policy are the worker's own. The clock is moved instead of waiting between attempts.
"""

import asyncio
import contextvars
import json
import logging
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, Unpack

import structlog

from credhook.logs.places import (
    NEVER_AWAITED,
    dropped_coroutine,
    is_authors,
    leaves,
    loaded_from,
    members,
    places,
    without_ours,
)
from credhook.settings import WorkerSettings
from credhook.testing.fake_platform import ApiCall, FakeApi
from credhook.worker.api.client import Api, AsyncApi
from credhook.worker.api.errors import Unavailable
from credhook.worker.attempt import running
from credhook.worker.attempt.attempt import failure_of
from credhook.worker.attempt.retry import BACKOFF, Defer, GiveUp, after_handler, error_text, is_chosen
from credhook.worker.handlers.arguments import Context, FailedRun, FetchedEvent, Progress, refuse_progress
from credhook.worker.handlers.blocking import refuse_blocking_calls
from credhook.worker.handlers.functions import definition, name_of
from credhook.worker.handlers.registry import HOOK_SECONDS, Handler, Handlers, plugins_of
from credhook.worker.platform.circuit import Circuit, outcome_of

#: pytest shows the author's lines and not ours.
__tracebackhide__ = True

#: The null handler keeps Python from printing these lines in test runs that do not capture logs.
log = logging.getLogger("credhook.testing")
log.addHandler(logging.NullHandler())

T = TypeVar("T")
Function: TypeAlias = Callable[..., Any]
Ending: TypeAlias = Literal["done", "skipped", "waiting", "timed_out", "dead"]

#: Default of `state`, since None may be a state.
UNSET: Final = object()
#: Maximum attempts of "until settled". A platform that stays down defers an event for a day.
_MAX_ATTEMPTS: Final = 10_000
_MAX_PLACES: Final = 4
#: Seconds that cancelled tasks get to end.
_GRACE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one or more attempts. The repr omits everything that the handler wrote, logged or raised."""

    outcome: Ending
    """`done`; `skipped` by its condition; `waiting` for another attempt; `timed_out` and waiting; or `dead`."""
    retry_in: float | None
    """Seconds until the next attempt, or None."""
    attempts: int
    """Number of runs, including crashed runs."""
    cause: str = ""
    """The error as a worker stores it: its class, or the reason of a `GiveUp` or `Retry`. Empty if done."""
    at: tuple[str, ...] = ()
    """The last places of the error's traceback, `folder/file:line function`, innermost last.

    Before them, class and place of each member if the error is an exception group.
    """
    error: Exception | None = field(default=None, repr=False)
    """The exception of the last run, or None."""
    logged: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """The lines written to `context.log`, with `event` and `log_level`."""
    calls: tuple[ApiCall, ...] = ()
    """The calls to the platform."""
    progress: Any = field(default=None, repr=False)
    """What the handler has saved by `context.progress`, or None."""


class RunOptions(TypedDict, total=False):
    """The options of `run` and `arun`, explained at `arun`."""

    api: FakeApi | None
    attempts: int | Literal["until settled"]
    timeout: float | None
    stale: bool
    state: object
    progress: Any


def run(handler: Function, event: FetchedEvent, **options: Unpack[RunOptions]) -> Result:
    """Run a handler as `arun` does: in a plain test, unittest, a script, or a notebook.

    Raises:
        TypeError, ValueError: see `arun`.
    """
    return run_on_new_loop(arun(handler, event, **options))


async def arun(
    handler: Function,
    event: FetchedEvent,
    *,
    api: FakeApi | None = None,
    attempts: int | Literal["until settled"] = 1,
    timeout: float | None = None,  # noqa: ASYNC109  The worker's timeout, not the caller's.
    stale: bool = False,
    state: object = UNSET,
    progress: Any = None,
) -> Result:
    """Run a handler for an event as a worker would, and return what the worker would do next.

    Attempts follow each other without waiting. The details stay the same; a worker would fetch them for each attempt.
    Functions of `on_error` and `on_give_up` run after each failed attempt. Their errors, which a worker would log, are
    raised here.

    Args:
        handler: a function, decorated or not.
        event: its first argument. The platform answers fetches of its resource with its details.
        api: the platform of `context.api`. Default: a new one.
        attempts: maximum number of attempts, from 1. "until settled" runs the handler until it is done or given up.
        timeout: seconds of real time for one run. Default: as in a worker.
        stale: `context.stale`.
        state: `context.state`, or the plugin's start-up function, which is called for it. Required if there is one.
        progress: what an earlier attempt has saved, for `context.progress.value`.

    Raises:
        TypeError: the function is not a function, or the event not an event.
        ValueError: the function is not a handler, or not for the event's type; or an option is wrong.
    """
    limit = limit_of(attempts)
    if timeout is not None and timeout <= 0:
        raise ValueError("timeout= should be more than 0 seconds")
    subject = handler_of(handler)
    async with started(plugins_of(handler), state) as states:
        value = states.get(subject.plugin, None if state is UNSET else state)
        trial = Trial(
            subject, event, api or FakeApi(), timeout=timeout, stale=stale, state=value, progress=Saved(progress)
        )
        return await trial.settle(limit)


def limit_of(attempts: int | Literal["until settled"]) -> int:
    """Return the maximum number of attempts.

    Raises:
        ValueError: the option is neither a number from 1 nor "until settled".
    """
    if attempts == "until settled":
        return _MAX_ATTEMPTS
    if not isinstance(attempts, int) or attempts < 1:
        raise ValueError('attempts= should be a number from 1, or "until settled"')
    return attempts


@asynccontextmanager
async def started(
    plugins: Sequence[Handlers[Any]], state: object, option: str = "state"
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield plugin → `context.state`. Call start-up functions, each once, and shut down at the end.

    `state`: of all plugins, or their start-up function; or plugin → its state or start-up function. `option`: the name
    of the author's option.

    Raises:
        TypeError: the state is a call of such a function.
        ValueError: a state is missing, or is the start-up function of another plugin.
    """
    is_by_plugin = isinstance(state, Mapping) and state and all(isinstance(plugin, Handlers) for plugin in state)
    chosen: Any = state if is_by_plugin else dict.fromkeys(plugins, state)
    for value in (state, *chosen.values()):
        _refuse_call(value, option)
    if strangers := [plugin.name for plugin in chosen if plugin not in plugins]:
        raise ValueError(f"{option}= has a state of {strangers[0]}, whose handlers are not run here")
    startups = [plugin.startup_function for plugin in plugins if plugin.startup_function]
    states, results, shutdowns = dict[str, Any](), dict[Any, Any](), set[Any]()
    async with AsyncExitStack() as stack:
        for plugin in plugins:
            value, startup, shutdown = chosen.get(plugin, UNSET), plugin.startup_function, plugin.shutdown_function
            if value is not UNSET and not any(_is_startup(value, other) for other in startups):
                states[plugin.name] = value
            elif startup is None:
                states[plugin.name] = None
            elif _is_startup(value, startup):
                if startup not in results:  # Plugins may share it.
                    results[startup] = await running.call(startup)
                states[plugin.name] = results[startup]
                if shutdown and (startup, shutdown) not in shutdowns:
                    shutdowns.add((startup, shutdown))
                    stack.push_async_callback(running.call, shutdown, results[startup])
            else:
                name = name_of(startup)
                hint = f"pass it, {option}={name}, or " + (
                    "the state that it would have returned" if option == "state" else "a function that makes the state"
                )
                if len(startups) > 1:
                    hint = f"pass the state of each plugin, {option}={{handlers: {name}, …}}"
                raise ValueError(f"{plugin.name} has a start-up function: {hint}")
        yield states


def _refuse_call(state: object, option: str) -> None:
    if isinstance(state, Coroutine | AsyncGenerator):
        if isinstance(state, Coroutine):
            state.close()  # Python would warn that nobody awaits it.
        raise TypeError(f"{option}= is a call that has not run: pass the function itself, {option}={name_of(state)}")


def _is_startup(value: object, startup: Function) -> bool:
    """Return True if the value is this start-up function, or the lifespan that it stands for."""
    return callable(value) and value in (startup, getattr(startup, "__wrapped__", None))


@dataclass
class Saved:
    """What handlers have saved by `context.progress`, in place of the store."""

    value: Any = None

    def progress(self) -> Progress[Any]:
        """Return the progress of the next attempt."""
        return Progress(lambda: json.dumps(self.value).encode(), self._write)

    async def _write(self, text: bytes) -> None:
        await asyncio.sleep(0)  # Suspend like the store: `assert_idempotent` crashes the handler here.
        self.value = json.loads(text)


@dataclass
class Trial:
    """One event at one handler, over several attempts, on the running event loop. Fields and errors are `arun`'s."""

    handler: Handler
    event: FetchedEvent
    api: FakeApi
    timeout: float | None = None
    stale: bool = False
    state: object = None
    progress: Saved = field(default_factory=Saved)
    _log: structlog.testing.LogCapture = field(default_factory=structlog.testing.LogCapture)
    _runs: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.event, FetchedEvent):
            raise TypeError(f"a {type(self.event).__name__} is no event: make it with event(type)")
        if self.event.type not in self.handler.types:
            name, type_ = self.handler.name, self.event.type
            raise ValueError(f"{name} would not run for {type_}: it is registered for other types")
        self._calls_before = len(self.api.calls)
        self.api.know(self.event)
        loaded_from(definition(self.handler.function).__module__)

    async def settle(self, attempts: int = _MAX_ATTEMPTS) -> Result:
        """Make up to so many attempts, until the handler is done or given up. Return the result."""
        for _ in range(attempts):
            outcome, error, wait = await self._attempt()
            if wait is None:
                break
            self.event = replace(self.event, age=self.event.age + timedelta(seconds=wait))
        return Result(
            outcome=outcome,
            retry_in=wait,
            attempts=self._runs,
            cause="" if error is None else error_text(error),
            at=() if error is None else (*members(error, _MAX_PLACES), *places(error, _MAX_PLACES)),
            error=error,
            logged=tuple(self._log.entries),
            calls=self.api.calls[self._calls_before :],
            progress=self.progress.value,
        )

    async def _attempt(self) -> tuple[Ending, Exception | None, float | None]:
        """Return how the handler ended, its error, and the seconds until the next attempt."""
        handler = self.handler
        try:
            is_wanted = handler.wants(self.event)
        except Exception as raised:  # noqa: BLE001  The author's code. A worker counts it as a failure, too.
            error: Exception | None = raised
            self._runs += 1
        else:
            if not is_wanted:
                return "skipped", None, None
            error = await self._run(handler)
        if error is None:
            return "done", None, None
        shown = type(error), error, without_ours(error.__traceback__)
        log.warning("%s attempt %s", handler.name, self.event.attempt, exc_info=shown)  # Shown if the test fails.
        failed = self.event
        decision = after_handler(
            error,
            failed.attempt,
            max_attempts=handler.max_attempts(WorkerSettings.model_fields["max_attempts"].default),
            age=failed.age.total_seconds(),
            pause=pause_after(error),
            backoff=handler.backoff or BACKOFF,
            give_up_on=handler.give_up_on,
            chance=lambda: 0.5,
        )
        if not is_chosen(error, decision) and failure_of(error, handler):
            await self._run_hooks(FailedRun(error, failed, handler.name, will_retry=not isinstance(decision, GiveUp)))
        if isinstance(decision, GiveUp):
            return "dead", error, None
        if not isinstance(decision, Defer):
            self.event = replace(failed, attempt=failed.attempt + 1)
        return "timed_out" if isinstance(error, running.HandlerTimeout) else "waiting", error, decision.after

    async def _run_hooks(self, failure: FailedRun) -> None:
        """Call the functions of `on_error` and `on_give_up`, and raise the first error of theirs."""
        for plugin in plugins_of(self.handler.function):
            for hook in plugin.hooks(will_retry=failure.will_retry):
                if error := await self._call(hook, HOOK_SECONDS, failure):
                    raise error

    async def crash(self, handler: Handler) -> None:
        """Run a handler in place of this one. Its process dies, so no result is recorded."""
        await self._run(handler)
        self.event = replace(self.event, attempt=self.event.attempt + 1)

    async def _run(self, handler: Handler) -> Exception | None:
        self._runs += 1
        timeout = self.timeout or handler.timeout or WorkerSettings.model_fields["handler_timeout"].default
        return await self._call(handler, timeout)

    async def _call(self, handler: Handler, seconds: float, failure: FailedRun | None = None) -> Exception | None:
        """Call a handler, or a function of `on_error` or `on_give_up` with its failure, and return its error.

        `seconds`: its time-out.
        """
        api = self.api.plain if handler.is_async else self.api.sync
        context = make_context(
            handler, self.event, api, stale=self.stale, state=self.state, capture=self._log, saved=self.progress
        )
        before = asyncio.all_tasks()
        runs = running.Runs(1)  # As in a new process.
        with suppress(ModuleNotFoundError):  # It comes with the extra `testing`.
            refuse_blocking_calls()
        with noted_warnings():
            error = await running.run(handler, self.event, context, timeout=seconds, runs=runs, failure=failure)
        if isinstance(error, running.HandlerTimeout):  # A task that hangs would delay the end of the test's loop.
            await end_tasks(asyncio.all_tasks() - before)
        return error


@contextmanager
def noted_warnings() -> Iterator[None]:
    """Note dropped coroutines, as a worker does. Pass all warnings on."""
    with warnings.catch_warnings():
        shown: Any = warnings.showwarning

        def note(message: Warning | str, *details: Any, **more: Any) -> None:
            dropped_coroutine(message)
            shown(message, *details, **more)

        warnings.showwarning = note
        warnings.filterwarnings("always", NEVER_AWAITED, RuntimeWarning)
        yield


def pause_after(error: Exception) -> float:
    """Return the seconds for which a worker's circuit breaker lets no call through after this error."""
    circuit = Circuit()
    for member in leaves(error):
        if isinstance(member, Unavailable):
            circuit = circuit.after(outcome_of(member.status, member.retry_after, at=0.0)._replace(chance=0.5))
    return circuit.pause(0.0)


def make_context(
    handler: Handler,
    event: FetchedEvent,
    api: AsyncApi | Api,
    *,
    stale: bool = False,
    state: object = None,
    capture: structlog.testing.LogCapture | None = None,
    saved: Saved | None = None,
) -> Context[Any, Any]:
    """Return the context that a worker gives this handler. Its log lines end up in `capture`."""
    log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        None,
        processors=[structlog.stdlib.PositionalArgumentsFormatter(), capture or structlog.testing.LogCapture()],
        wrapper_class=structlog.stdlib.BoundLogger,
        webhook_id=event.webhook_id,
        event_type=event.type,
        resource_id=event.resource_id,
        attempt=event.attempt,
        handler=handler.name,
    )
    key, progress = f"{event.webhook_id}:{handler.name}", (saved or Saved()).progress()
    if not handler.types:  # A function of `on_error` or `on_give_up`.
        progress = Progress(lambda: None, refuse_progress)
    return Context(api, log.bind(), key, stale, state, progress, WorkerSettings.model_fields["queue"].default)


def handler_of(function: Function) -> Handler:
    """Return the registered handler of a function. Register an undecorated function for all types in a plugin `test`.

    Raises:
        ValueError: the function cannot be a handler.
    """
    for plugin in plugins_of(function):
        if handler := plugin.handler_of(function):
            return handler
    undecorated: Handlers[Any] = Handlers("test")
    undecorated.on("*")(function)
    return next(iter(undecorated))


async def end_tasks(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """End the tasks, even tasks that swallow their cancellation."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_GRACE_SECONDS)
    for task in tasks:
        if not task.done() and (coroutine := task.get_coro()) is not None:
            with suppress(BaseException):
                coroutine.close()
            task.add_done_callback(running.retrieve)
            task.cancel()
    await asyncio.sleep(0)


def run_on_new_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop of its own, in another thread if a loop runs here, as in a notebook.

    The traceback of wrong usage begins with the author's lines.
    """
    if asyncio._get_running_loop() is None:  # noqa: SLF001  The public function raises, which tracebacks would show.
        return _run_on_new_loop(coroutine)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(contextvars.copy_context().run, _run_on_new_loop, coroutine).result()


def _run_on_new_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    # `asyncio.run` would also replace the thread's current loop, which may be a fixture's.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        try:
            return runner.run(coroutine)
        except (AssertionError, TypeError, ValueError) as error:  # asyncio's lines are not the author's either.
            calls = error.__traceback__
            while calls and not is_authors(calls.tb_frame.f_code.co_filename):
                calls = calls.tb_next
            raise error.with_traceback(calls)  # noqa: B904  It is the same error.
