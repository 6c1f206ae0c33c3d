"""`run` and `arun`: a handler under test, run as a worker would run it."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack

from credhook.testing.crashes import Crash, CrashInjector, end
from credhook.testing.platform.api import FakeApi
from credhook.testing.trial import Conditions, Result, Trial, is_overtaken
from credhook.worker.handlers.handler import Handler
from credhook.worker.handlers.registry import Handlers
from credhook.worker.handlers.types import FetchedEvent
from credhook.worker.settings import WorkerSettings

T = TypeVar("T")

Function = Callable[..., Any]

_NOT_SAID: Final = object()
#: Attempts that are worth making: no event has as many, unless the platform stays down for a day.
_MOST: Final = 10_000


def _middle() -> float:
    """Waits are what they are on average."""
    return 0.5


class RunOptions(TypedDict, total=False):
    """The options of `run` and `arun`; `arun` says what they mean."""

    api: FakeApi | None
    attempts: int | Literal["until settled"]
    crash_after: int | None
    timeout: float | None
    max_attempts: int | None
    stale: bool | None
    state: object
    chance: Callable[[], float]


def run(handler: Handler | Function, event: FetchedEvent, **options: Unpack[RunOptions]) -> Result:
    """Run a handler as `arun` does, from where no event loop runs: a plain test, unittest, a script.

    Raises:
        RuntimeError: an event loop runs here.
        ValueError: see `arun`.
    """
    return off_loop("arun", lambda: arun(handler, event, **options))


async def arun(
    handler: Handler | Function,
    event: FetchedEvent,
    *,
    api: FakeApi | None = None,
    attempts: int | Literal["until settled"] = 1,
    crash_after: int | None = None,
    timeout: float | None = None,  # noqa: ASYNC109  The worker's, which holds for what swallows a cancellation, too.
    max_attempts: int | None = None,
    stale: bool | None = None,
    state: object = _NOT_SAID,
    chance: Callable[[], float] = _middle,
) -> Result:
    """Run a handler for an event as a worker would, and say what the worker would do next.

    Nobody waits between attempts: the clock by which waits and pauses are counted is moved instead. A worker would
    fetch the details anew for each; here they stay as they are.

    Args:
        handler: a function, decorated or not, or a `Handler`.
        event: its first argument; where a platform is asked for its resource, the answer is its details.
        api: the platform of `context.api`; by default a new one.
        attempts: how often at most; "until settled" runs it until it is done or given up.
        crash_after: have the process die when that await, counted from 1, has returned, or else at the handler's end,
            and run it again from the start. A plain function dies at its end.
        timeout: seconds that one run may take, of real time; by default the handler's own, or a worker's default. An
            `async def` that does not await cannot be stopped, here as there.
        max_attempts: attempts after which the worker gives up; by default a worker's default.
        stale: what `context.stale` says; by default, whether the details show a later state than the event's.
        state: what `context.state` says; it has to be said where the plugin has a start-up function.
        chance: a number from 0 to 1, drawn anew for each wait that the worker spreads; by default the middle.

    Raises:
        ValueError: the handler is registered for other types than this, or cannot be one; a number is below 1, or a
            state is wanted.
    """
    if (attempts != "until settled" and attempts < 1) or (crash_after is not None and crash_after < 1):
        raise ValueError("attempts and crash_after are counted from 1")
    subject = handler_of(handler)
    if state is _NOT_SAID:
        if _has_startup(subject):
            raise ValueError(f"{subject.plugin} has a start-up function: say state=…, what it would have returned")
        state = None
    conditions = conditions_for(
        subject, event, timeout=timeout, max_attempts=max_attempts, stale=stale, state=state, chance=chance
    )
    trial = Trial(subject, event, FakeApi() if api is None else api, conditions)
    if crash_after is not None:
        await trial.crash(CrashInjector(Crash(crash_after), own=code_of(subject)))
    await settle(trial, _MOST if attempts == "until settled" else attempts)
    return trial.result()


async def settle(trial: Trial, most: int = _MOST) -> None:
    """Make attempts until it is done or given up, and no more than so many."""
    for _ in range(most):
        await trial.attempt()
        if trial.is_settled:
            return


def conditions_for(
    handler: Handler,
    event: FetchedEvent,
    *,
    timeout: float | None = None,
    max_attempts: int | None = None,
    stale: bool | None = None,
    state: object = None,
    chance: Callable[[], float] = _middle,
) -> Conditions:
    """What a worker would go by; the options are those of `arun`.

    Raises:
        ValueError: the handler is registered for other types than this.
    """
    if event.type not in handler.types:
        raise ValueError(f"{handler.name} would not run for {event.type}: it is registered for other types")
    # What a worker has unless its environment says otherwise.
    attempts, seconds = (WorkerSettings.model_fields[one].default for one in ("max_attempts", "handler_timeout"))
    own = handler.timeout if timeout is None else timeout
    return Conditions(
        timeout=seconds if own is None else own,
        max_attempts=handler.max_attempts(attempts) if max_attempts is None else max_attempts,
        stale=is_overtaken(event) if stale is None else stale,
        state=state,
        chance=chance,
    )


def handler_of(handler: Handler | Function) -> Handler:
    """What a worker knows a function as; one of a plugin `test` for all types, where it is not decorated.

    Raises:
        ValueError: it cannot be a handler.
    """
    if isinstance(handler, Handler):
        return handler
    found = next(filter(None, (plugin.handler_of(handler) for plugin in _plugins(handler))), None)
    if found is None:
        undecorated: Any = Handlers("test")
        undecorated.on("*")(handler)
        found = undecorated.handler_of(handler)
    assert found is not None  # noqa: S101  It has just been registered.
    return found


def _has_startup(handler: Handler) -> bool:
    """Whether the plugin that it is registered with has a start-up function."""
    function = handler.function
    return any(plugin.handler_of(function) and plugin.startup_function is not None for plugin in _plugins(function))


def _plugins(function: Function) -> list[Handlers]:
    """Those that its module knows."""
    return [one for one in getattr(function, "__globals__", {}).values() if isinstance(one, Handlers)]


def code_of(handler: Handler) -> Any:
    """The code of its function, below all decorators."""
    return getattr(inspect.unwrap(handler.function), "__code__", None)


def off_loop(awaited: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on an event loop of its own, which nobody else gets to see.

    Raises:
        RuntimeError: an event loop runs here, which would stand still; the message names what to await instead.
    """
    if _runs_here():
        raise RuntimeError(f"an event loop runs here already: await {awaited}(…) instead")
    with closing(asyncio.new_event_loop()) as loop:
        try:
            return loop.run_until_complete(begin())
        finally:  # What handlers have left behind.
            loop.run_until_complete(end(asyncio.all_tasks(loop)))
            loop.run_until_complete(loop.shutdown_asyncgens())


def _runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
