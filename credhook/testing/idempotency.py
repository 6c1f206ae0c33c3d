"""`assert_idempotent`: check that a handler may run again after its process died at any of its awaits.

The handler's coroutine is stepped by hand. Each object that the author's code awaits and that suspends it is one crash
point. An await that completes without suspending is not a crash point, so let fakes `await asyncio.sleep(0)`.

The crash is an exception that `except Exception` does not catch. A real crash runs no `finally` and no `__aexit__`.
Here they run, which stands for the rollback of a database that lost the connection.
"""

import asyncio
import copy
import difflib
import inspect
import pprint
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from credhook.logs.places import is_authors, without_ours
from credhook.testing.fake_platform import FakeApi
from credhook.testing.running import UNSET, Function, Result, Trial, end_tasks, handler_of, run_on_new_loop, started
from credhook.worker.attempt.retry import GiveUp
from credhook.worker.attempt.running import retrieve
from credhook.worker.handlers.arguments import Context, FetchedEvent
from credhook.worker.handlers.functions import as_manager, is_async_generator, is_generator
from credhook.worker.handlers.registry import Handler, plugins_of

#: pytest shows the author's lines and not ours.
__tracebackhide__ = True


def assert_idempotent(
    handler: Function,
    event: FetchedEvent,
    *,
    fresh: Callable[..., Any] | None = None,
    effects: Callable[..., Any] | None = None,
) -> None:
    """Check as `aassert_idempotent` does.

    Raises:
        AssertionError: see `aassert_idempotent`.
    """
    run_on_new_loop(aassert_idempotent(handler, event, fresh=fresh, effects=effects))


async def aassert_idempotent(
    handler: Function,
    event: FetchedEvent,
    *,
    fresh: Callable[..., Any] | None = None,
    effects: Callable[..., Any] | None = None,
) -> None:
    """Check that a handler has the same effects however often it runs.

    The handler runs once undisturbed. Then it runs twice, as if its end had not been recorded. Then, for each of its
    awaits, it runs in a process that dies at that await, and again from the start. A plain function runs once and
    twice.

    Args:
        handler: as for `arun`.
        event: as for `arun`.
        fresh: makes the author's own data before each undisturbed or crashed run, and returns `context.state`. It may
            be the plugin's start-up function, a coroutine function, or have a `yield`, as a lifespan function has. It
            gets the `FakeApi` if it takes an argument. Required if the plugin has a start-up function.
        effects: returns the effects as a value to compare, such as the rows of a table. It gets the result of `fresh`
            if it takes an argument, and may be a coroutine function. Default: `FakeApi.effects`.

    Raises:
        AssertionError: the effects differ, the handler has none, or it fails. The message says after which crash, and
            where.
        ValueError: as for `arun`; or there is `effects` without `fresh`, so that runs would share their data.
    """
    if effects is not None and fresh is None:
        hint = "pass fresh=, a function that makes or empties your data before each run"
        raise ValueError(f"effects= without fresh= would compare data that all runs share: {hint}")
    for option, function in (("fresh", fresh), ("effects", effects)):
        if function is not None and not callable(function):
            raise TypeError(f"{option}= should be a function, and is a {type(function).__name__}")
        if is_generator(function) and not is_async_generator(function):
            raise TypeError(f"{option}= has a yield: make it an `async def`")
    await _check(handler_of(handler), event, fresh, effects)


@asynccontextmanager
async def _made(subject: Handler, fresh: Callable[..., Any] | None, api: FakeApi) -> AsyncIterator[object]:
    """Yield `context.state` of one run, made by `fresh`, which may be the start-up function."""
    async with started(plugins_of(subject.function), UNSET if fresh is None else fresh, "fresh") as states:
        state = states.get(subject.plugin, fresh)
        if fresh is None or state is not fresh:
            yield state
        elif is_async_generator(fresh):
            async with _called(as_manager(fresh), api) as made:
                yield made
        else:
            made = _called(fresh, api)
            yield await made if inspect.isawaitable(made) else made


async def _check(
    subject: Handler,
    event: FetchedEvent,
    fresh: Callable[..., Any] | None,
    effects: Callable[..., Any] | None,
) -> None:
    async def seen(api: FakeApi, state: object) -> object:
        shown = api.effects() if effects is None else _called(effects, state)
        # `effects` may return the state itself, which the next run changes.
        return copy.deepcopy(await shown if inspect.isawaitable(shown) else shown)

    before: object = UNSET

    async def observe(point: CrashPoint | None) -> tuple[Result, object]:
        nonlocal before
        api = FakeApi()
        async with _made(subject, fresh, api) as state:
            if before is UNSET:
                before = None
                with suppress(Exception):  # There may be nothing to read yet, such as a table that the handler makes.
                    before = await seen(api, state)
            trial = Trial(subject, event, api, state=state)
            if point is not None:
                stopped = replace(subject, function=point.wrap(subject.function)) if subject.is_async else subject
                await trial.crash(stopped)
            result = await trial.settle()
            return result, await seen(api, state)

    first, expected = await observe(None)
    if not _is_done(first):
        message = f"{subject.name} did not get done when nothing disturbed it: {_summary(first)}"
        raise AssertionError(message) from _shown(first.error)
    if expected == before and first.error is None:
        hint = "let fresh= make, and effects= return, what it changes"
        raise AssertionError(f"{subject.name} had no effect to compare: {hint}")
    number, awaits = 0, 0
    while number <= awaits:  # Run 0 reaches its end, and counts the awaits.
        point = CrashPoint(number)
        result, run_effects = await observe(point)
        awaits = awaits if number else point.awaits
        died = f"died at its await {number} at {point.at}" if number else "ended without being recorded as done"
        if result.outcome != first.outcome or not _is_done(result):
            raise AssertionError(
                f"{subject.name} cannot run again: it {died}, and the next run ended as {_summary(result)}"
            ) from _shown(result.error)
        if run_effects != expected:
            once, again = (pprint.pformat(value).splitlines() for value in (expected, run_effects))
            changes = "\n".join(difflib.unified_diff(once, again, "once", "again", lineterm=""))
            raise AssertionError(f"{subject.name} is not idempotent: it {died}, ran again, and left\n{changes}")
        number += 1


def _shown(error: Exception | None) -> Exception | None:
    """Return the handler's error as pytest should show it, without our calls."""
    return error and error.with_traceback(without_ours(error.__traceback__))


def _is_done(result: Result) -> bool:
    return result.outcome == "done" or isinstance(result.error, GiveUp)


def _summary(result: Result) -> str:
    return " ".join([f"{result.outcome},", result.cause, *(f"at {place}" for place in result.at[-1:])])


def _called(function: Callable[..., Any], argument: object) -> Any:
    """Call the function, with the argument if it takes one."""
    try:
        takes_argument = bool(inspect.signature(function).parameters)
    except ValueError:  # Some built-in functions have no signature, such as `dict.clear`.
        takes_argument = False
    return function(argument) if takes_argument else function()


class Crashed(BaseException):
    """The handler's process has died."""


@dataclass
class CrashPoint:
    """One run of a handler that counts its awaits and may die at one of them.

    Attributes:
        number: the await to die at, counted from 1; 0 only counts.
        awaits: how many awaits the run has made.
        at: where it died, as `file:line`, or "".
    """

    number: int
    awaits: int = 0
    at: str = ""

    def wrap(self, function: Function) -> Function:
        """Return the handler's function with this crash in it.

        It raises `Crashed`, even if the handler catches that. Tasks that the handler has begun end as well.
        """

        async def crashing(event: FetchedEvent, context: Context[Any, Any]) -> None:
            before = asyncio.all_tasks()
            try:
                await self._stepped(function(event, context))
            except BaseException:
                if not self.at:
                    raise
            if self.at:
                await end_tasks(asyncio.all_tasks() - before)
                raise Crashed

        return crashing

    @types.coroutine
    def _stepped(self, coroutine: Coroutine[Any, Any, object]) -> Generator[Any, None, None]:
        error: BaseException | None = None
        previous: object = None
        while True:
            try:
                future = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration:
                return
            error = None
            try:
                awaited, place = _find_await(coroutine)
                if not self.at and awaited is not None and awaited is not previous:
                    previous = awaited
                    self.awaits += 1
                    if self.awaits == self.number:
                        self.at = place
                        raise Crashed  # noqa: TRY301  Like any error, it is thrown into the coroutine.
                yield future
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as raised:  # noqa: BLE001  It belongs to the coroutine.
                if isinstance(raised, Crashed) and isinstance(future, asyncio.Future):
                    future.add_done_callback(retrieve)
                error = raised


def _find_await(coroutine: Coroutine[Any, Any, object]) -> tuple[object, str]:
    """Return the object that the author's innermost function awaits, and its place; (None, "") if there is none."""
    awaited: object = None
    inner: object = coroutine
    place = ""
    while inspect.iscoroutine(inner):
        if inner.cr_frame and is_authors(inner.cr_code.co_filename):
            awaited, place = inner.cr_await, f"{inner.cr_code.co_filename}:{inner.cr_frame.f_lineno}"
        inner = inner.cr_await
    return awaited, place
