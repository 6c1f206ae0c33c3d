"""`assert_idempotent`: check that a handler may run again after its process died at any of its awaits."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from credhook.testing.fake_platform import FakeApi
from credhook.testing.running import Function, Result, Trial, handler_of, run_on_new_loop
from credhook.worker.attempt.retry import GiveUp
from credhook.worker.handlers.registry import Handler
from credhook.worker.handlers.types import FetchedEvent

_MAX_DIFFERENCES: Final = 5


def assert_idempotent(
    handler: Handler | Function,
    event: FetchedEvent,
    *,
    fresh: Callable[..., Any] | None = None,
    effects: Callable[..., Any] | None = None,
    timeout: float | None = None,
) -> None:
    """Check as `aassert_idempotent` does, where no event loop runs.

    Raises:
        AssertionError: see `aassert_idempotent`.
        RuntimeError: an event loop runs here.
    """
    run_on_new_loop(
        "aassert_idempotent", lambda: aassert_idempotent(handler, event, fresh=fresh, effects=effects, timeout=timeout)
    )


async def aassert_idempotent(
    handler: Handler | Function,
    event: FetchedEvent,
    *,
    fresh: Callable[..., Any] | None = None,
    effects: Callable[..., Any] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109  The worker's timeout, not the caller's.
) -> None:
    """Check that a handler has the same effects however often it runs.

    The handler runs once undisturbed. Then it runs twice, as if its end had not been recorded. Then, for each of its
    awaits, it runs in a process that dies at that await, and again from the start. A plain function runs once and
    twice.

    Args:
        handler: as for `arun`.
        event: as for `arun`.
        fresh: makes the state before each of these, and returns `context.state`. It gets the `FakeApi` if it takes an
            argument. May be a coroutine function, like `effects`.
        effects: returns the effects as a value to compare, such as the rows of a table. It gets the result of `fresh`
            if it takes an argument. Default: `FakeApi.effects`.
        timeout: as for `arun`.

    Raises:
        AssertionError: the effects differ, or the handler fails. The message says after which crash, and where.
        ValueError: as for `arun`.
    """
    subject = handler_of(handler)

    async def new_trial() -> tuple[Trial, FakeApi, Any]:
        api = FakeApi()
        state = await _call(fresh, api)
        return Trial(subject, event, api, timeout=timeout, state=state), api, state

    async def finish(trial: Trial, api: FakeApi, state: object) -> tuple[Result, object]:
        await trial.settle()
        # `effects` may return the state itself, which is about to change.
        return trial.result(), copy.deepcopy(api.effects() if effects is None else await _call(effects, state))

    first, expected = await finish(*await new_trial())
    if not _is_done(first):
        raise AssertionError(f"{subject.name} did not get done when nothing disturbed it: {_summary(first)}")
    number, awaits = 0, 0
    while number <= awaits:  # Number 0 runs to its end, and counts the awaits.
        trial, api, state = await new_trial()
        point = await trial.crash(number or None)
        awaits = awaits if number else point.awaits
        died = f"died at its await {number} at {point.crashed_at}" if number else "ended without being recorded as done"
        result, found = await finish(trial, api, state)
        if result.outcome != first.outcome or not _is_done(result):
            raise AssertionError(
                f"{subject.name} cannot run again: it {died}, and the next run ended as {_summary(result)}"
            )
        if changes := differences(expected, found):
            raise AssertionError(f"{subject.name} is not idempotent: it {died}, ran again, and then {changes}")
        number += 1


def _is_done(result: Result) -> bool:
    return result.outcome == "done" or isinstance(result.error, GiveUp)


def _summary(result: Result) -> str:
    return " ".join([f"{result.outcome},", result.cause, *(f"at {place}" for place in result.at[-1:])])


async def _call(function: Callable[..., Any] | None, argument: object) -> Any:
    """Call the function, with the argument if it takes one."""
    if function is None:
        return None
    try:
        inspect.signature(function).bind(argument)
    except (TypeError, ValueError):  # Some built-in functions have no signature.
        result = function()
    else:
        result = function(argument)
    return await result if inspect.isawaitable(result) else result


def differences(expected: object, found: object) -> str:
    """Return how `found` differs, in one line; "" if it does not. Values are not shown: they may be claims."""
    if expected == found:
        return ""
    every = list(_differ(expected, found, "")) or ["the values differ"]
    rest = [f"and {len(every) - _MAX_DIFFERENCES} more"] if len(every) > _MAX_DIFFERENCES else []
    return "; ".join([*every[:_MAX_DIFFERENCES], *rest])


def _differ(expected: Any, found: Any, place: str) -> Iterator[str]:
    name = place or "the whole"
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        prefix = f"{place}." if place else ""
        yield from (f"{prefix}{key} is missing" for key in expected if key not in found)
        yield from (f"{prefix}{key} should not be there" for key in found if key not in expected)
        for key in expected:
            if key in found and expected[key] != found[key]:
                yield from _differ(expected[key], found[key], f"{prefix}{key}")
    elif isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        if len(expected) != len(found):
            yield f"{name} has {_count(found)} instead of {_count(expected)}"
            return
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            if one != other:
                yield from _differ(one, other, f"{place}[{index}]")
    elif type(expected) is type(found):
        yield f"{name} has another value"
    else:
        yield f"{name} is {type(found).__name__} instead of {type(expected).__name__}"


def _count(entries: Sequence[object]) -> str:
    total = f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"
    repeated = sum(entry in entries[:index] for index, entry in enumerate(entries))
    return f"{total} ({repeated} repeated)" if repeated else total
