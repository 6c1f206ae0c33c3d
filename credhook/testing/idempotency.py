"""Whether a handler may be run again: an event is handled at least once, and a process can die at any await."""

import copy
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from credhook.testing.crashes import Crash, CrashInjector
from credhook.testing.differences import differences
from credhook.testing.platform.api import FakeApi
from credhook.testing.running import Function, code_of, conditions_for, handler_of, off_loop, settle
from credhook.testing.trial import Result, Trial
from credhook.worker.attempt.retry import GiveUp
from credhook.worker.handlers.handler import Handler
from credhook.worker.handlers.types import FetchedEvent


def assert_idempotent(
    handler: Handler | Function,
    event: FetchedEvent,
    *,
    fresh: Callable[..., Any] | None = None,
    effects: Callable[..., Any] | None = None,
    timeout: float | None = None,
) -> None:
    """Check as `aassert_idempotent` does, from where no event loop runs.

    Raises:
        AssertionError: see there.
        RuntimeError: an event loop runs here.
    """
    off_loop(
        "aassert_idempotent", lambda: aassert_idempotent(handler, event, fresh=fresh, effects=effects, timeout=timeout)
    )


async def aassert_idempotent(
    handler: Handler | Function,
    event: FetchedEvent,
    *,
    fresh: Callable[..., Any] | None = None,
    effects: Callable[..., Any] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109  The worker's.
) -> None:
    """Check that a handler that runs again comes to the same as one that runs once.

    It is run undisturbed; then twice, as if nobody had learnt that it was done; then, for each of its awaits, in a
    process that dies before what it awaits has begun, and in one that dies once that has returned, and again from the
    start: four runs for an await, so that an event with few makes a quick test. A plain function is run once and twice.

    Args:
        handler: as for `arun`.
        event: as for `arun`.
        fresh: makes the state that each of these begins with, and is given the platform, a `FakeApi`, if it takes an
            argument. What it returns is `context.state`. May be a coroutine function, as `effects` may.
        effects: what the handler has brought about, as a value that can be compared, such as the rows of a table; given
            what `fresh` returned if it takes an argument. By default what is on the platform: `FakeApi.effects`.
        timeout: as for `arun`.

    Raises:
        AssertionError: it came to something else; the message says after which crash, and where the difference is.
            Or it did not get done even undisturbed.
        ValueError: as for `arun`.
    """
    subject = handler_of(handler)

    async def come_to(injector: CrashInjector | None) -> _End:
        api = FakeApi()
        state = await _given(fresh, api)
        trial = Trial(subject, event, api, conditions_for(subject, event, timeout=timeout, state=state))
        if injector is not None:
            await trial.crash(injector)
        await settle(trial)
        seen = api.effects() if effects is None else await _given(effects, state)
        return _End(trial.result(), copy.deepcopy(seen))  # It may be the state itself, which is about to change.

    once = await come_to(None)
    if not once.is_done:
        raise AssertionError(f"{subject.name} did not get done when nothing disturbed it: {once.said}")
    counting = CrashInjector(own=code_of(subject))
    _compare(subject, once, await come_to(counting), "ended without being recorded as done")
    for at in range(1, counting.awaits + 1):
        for crash in (Crash(at, "before"), Crash(at, "after")):
            injector = CrashInjector(crash, own=code_of(subject))
            end = await come_to(injector)
            _compare(subject, once, end, f"died {_moment(crash)} at {injector.crashed_at}")


class _End(NamedTuple):
    result: Result
    effects: object

    @property
    def is_done(self) -> bool:
        """Whether it has come to an end that its author meant."""
        return self.result.outcome == "done" or isinstance(self.result.error, GiveUp)

    @property
    def said(self) -> str:
        """Its end, in one line."""
        result = self.result
        return " ".join([f"{result.outcome},", result.cause, *(f"at {place}" for place in result.at[-1:])])


def _compare(handler: Handler, once: _End, again: _End, what: str) -> None:
    if (again.result.outcome, again.is_done) != (once.result.outcome, True):
        raise AssertionError(f"{handler.name} cannot run again: it {what}, and the next run ended as {again.said}")
    if found := differences(once.effects, again.effects):
        raise AssertionError(f"{handler.name} is not idempotent: it {what}, ran again, and then {found}")


def _moment(crash: Crash) -> str:
    return f"before its await {crash.at} began" if crash.when == "before" else f"after its await {crash.at}"


async def _given(function: Callable[..., Any] | None, argument: object) -> Any:
    """What the function returns, which is given the argument if it takes one."""
    if function is None:
        return None
    result = function(argument) if _takes_one(function) else function()
    return await result if inspect.isawaitable(result) else result


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # Of builtins that do not say.
        return False
    return True
