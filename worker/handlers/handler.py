"""One handler: a function, the event types that it runs for, and its options."""

import functools
import inspect
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin

from typing_extensions import TypedDict

from credhook.backoff import Backoff
from credhook.logs.places import beginning
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.models import model_of
from credhook.worker.handlers.types import Context, FetchedEvent

Function = Callable[[Any, Any], Any]

#: Upper limit of `retries` and `concurrency`. A larger number is a mistake.
_LIMIT: Final = 10_000
_MAX_GROWTH: Final = 1_000


class Options(TypedDict, total=False):
    """The options of `Handlers.on`.

    Attributes:
        timeout: seconds that one run may take. Default: CREDHOOK_HANDLER_TIMEOUT.
        retries: how often the event is retried after this handler has failed. Counts the event's attempts.
            Default: CREDHOOK_MAX_ATTEMPTS - 1.
        backoff: the waits between attempts, unless the handler raises `Retry(after=…)`.
        give_up_on: exceptions after which the handler never runs again for the event.
        condition: a function of the event that returns whether to run the handler. It runs on the event loop, so it
            must be quick.
        after: a handler defined above, or its name. This handler runs once that one is done. Otherwise handlers run
            concurrently.
        concurrency: maximum number of concurrent runs in the whole fleet.
    """

    timeout: float
    retries: int
    backoff: Backoff
    give_up_on: type[Exception] | tuple[type[Exception], ...]
    condition: Callable[[Any], bool]
    after: str | Callable[..., Any]
    concurrency: int


@dataclass(frozen=True)
class Handler:
    """One function of one plugin. `Options` explains the other attributes.

    Attributes:
        name: `plugin.function`. Progress is recorded under this name: a renamed function is a new handler.
        types: the event types that it runs for.
        function: called with a `FetchedEvent` and a `Context`.
        after: the full name of the handler that must be done first.
    """

    name: str
    types: frozenset[str]
    function: Function
    timeout: float | None = None
    retries: int | None = None
    backoff: Backoff | None = None
    give_up_on: tuple[type[Exception], ...] = ()
    condition: Callable[[Any], bool] | None = None
    after: str | None = None
    concurrency: int | None = None

    @functools.cached_property
    def is_async(self) -> bool:
        """Return True if the function runs on the event loop, False if it runs in a thread."""
        return _is_async(self.function)

    @functools.cached_property
    def at(self) -> str:
        """Return where the function begins, as `file:line`, or "" if that is unknown."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return beginning(code) if code else ""

    @property
    def plugin(self) -> str:
        """Return the name of its plugin."""
        return self.name.partition(".")[0]

    def max_attempts(self, default: int) -> int:
        """Return the number of attempts after which the event is given up for this handler."""
        return default if self.retries is None else self.retries + 1


def new_handler(name: str, types: frozenset[str], function: Function, options: Options) -> Handler:
    """Return the handler after checking function, options and annotations.

    Raises:
        ValueError: one of them is wrong. The message names the handler and the remedy.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"{name} is a generator and would never run: leave out the yield")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise ValueError(f"{name} should take two arguments, (event, context)") from None
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        raise ValueError(f"{name}: on() has no option {unknown[0]!r}; it has {', '.join(Options.__annotations__)}")
    classes = options.get("give_up_on", ())
    before = options.get("after")
    if before is not None:
        before = before if isinstance(before, str) else getattr(before, "__name__", "")
        before = before if "." in before else f"{name.partition('.')[0]}.{before}"
    handler = Handler(
        name,
        types,
        function,
        timeout=options.get("timeout"),
        retries=options.get("retries"),
        backoff=options.get("backoff"),
        give_up_on=classes if isinstance(classes, tuple) else (classes,),
        condition=options.get("condition"),
        after=before,
        concurrency=options.get("concurrency"),
    )
    _check_options(handler)
    _check_annotations(handler)
    return handler


def _check_options(handler: Handler) -> None:
    name, condition = handler.name, handler.condition
    if handler.timeout is not None and not (_is_number(handler.timeout) and 0 < handler.timeout < math.inf):
        raise ValueError(f"{name}: timeout should be seconds, more than 0")
    for option, value, least in (("retries", handler.retries, 0), ("concurrency", handler.concurrency, 1)):
        if value is not None and not (type(value) is int and least <= value <= _LIMIT):
            raise ValueError(f"{name}: {option} should be a whole number from {least} on")
    if handler.backoff is not None and not _is_valid(handler.backoff):
        raise ValueError(
            f"{name}: backoff should be a Backoff(first=…, longest=…) of seconds, growth from 1 on, jitter up to 1"
        )
    if not all(isinstance(one, type) and issubclass(one, Exception) for one in handler.give_up_on):
        raise ValueError(f"{name}: give_up_on should be an exception class, or a tuple of them")
    if condition is not None and (not callable(condition) or _is_async(condition)):
        raise ValueError(f"{name}: condition should be a plain function of the event")


def _is_valid(backoff: object) -> bool:
    if not isinstance(backoff, Backoff):
        return False
    numbers = backoff.first, backoff.longest, backoff.growth, backoff.jitter
    if not all(_is_number(one) and math.isfinite(one) for one in numbers):
        return False
    return 0 <= backoff.first <= backoff.longest and 1 <= backoff.growth <= _MAX_GROWTH and 0 <= backoff.jitter <= 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function))


def _check_annotations(handler: Handler) -> None:
    """Compare the annotations of the arguments with the types they will have. Skip annotations that do not resolve."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(handler.function))
        event, context = (hints.get(one) for one in list(inspect.signature(handler.function).parameters)[:2])
    except (NameError, TypeError, AttributeError, ValueError):
        return
    if get_origin(event) is FetchedEvent:
        annotated = get_args(event)[0]
        classes = get_args(annotated) or (annotated,)
        for event_type in sorted(handler.types) if all(isinstance(one, type) for one in classes) else ():
            details = model_of(event_type)
            if not any(issubclass(details, one) for one in classes):
                names = " | ".join(one.__name__ for one in classes)
                raise ValueError(
                    f"{handler.name}: the details of {event_type} are of class {details.__name__}; annotate the event "
                    f"as FetchedEvent[{details.__name__}] instead of FetchedEvent[{names}]"
                )
    if get_origin(context) is Context:
        wanted, expected = get_args(context)[0], AsyncApi if handler.is_async else SyncApi
        if wanted in {AsyncApi, SyncApi} and wanted is not expected:
            kind, fit = ("an async def", "AsyncContext") if handler.is_async else ("a plain function", "SyncContext")
            raise ValueError(f"{handler.name} is {kind}: annotate its context as {fit}")
