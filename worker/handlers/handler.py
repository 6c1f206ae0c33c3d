"""One handler: a function of a plugin, what it is run for, and what its author has said about how."""

import functools
import inspect
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin

from typing_extensions import TypedDict

from credhook.backoff import Backoff
from credhook.events import concerns_issuance
from credhook.logs.places import beginning
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.models import Issuance, Presentation
from credhook.worker.api.threads import SyncApi
from credhook.worker.handlers.given import Context, FetchedEvent

Function = Callable[[Any, Any], Any]

#: What `retries` and `concurrency` may be at most; beyond it, something else was meant.
_MOST: Final = 10_000
_MOST_GROWTH: Final = 1_000


class Options(TypedDict, total=False):
    """What `Handlers.on` can be told besides event types.

    Attributes:
        timeout: seconds that a run may take; by default CREDHOOK_HANDLER_TIMEOUT.
        retries: how often an event comes back to the handler after it has failed, by the event's own attempts; by
            default one less than CREDHOOK_MAX_ATTEMPTS.
        backoff: the waits between attempts, where the handler does not ask for its own.
        give_up_on: exceptions after which it is never run again for the event.
        condition: whether the handler is run for this event at all; called on the event loop, so it should be quick.
        after: an earlier handler of the plugin, or its name, that must have ended well before this one begins. Handlers
            run beside each other otherwise.
        concurrency: how many runs of the handler there may be at a time, in the whole fleet.
    """

    timeout: float
    retries: int
    backoff: Backoff
    give_up_on: type[Exception] | tuple[type[Exception], ...]
    condition: Callable[[Any], bool]
    after: str | Callable[..., Any]
    concurrency: int


@dataclass(frozen=True, slots=True)
class Handler:
    """One function of one plugin.

    Attributes:
        name: `plugin.function`; progress is recorded under it, so renaming a function makes it a new handler.
        types: the event types that it runs for.
        function: what is called with a `FetchedEvent` and a `Context`.

    The others are as in `Options`; `after` is the other handler's name.
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

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop; otherwise it runs in a thread."""
        return _is_async(self.function)

    @property
    def at(self) -> str:
        """Where its function begins, `file:line`; empty if that is not known."""
        return _at(self.function)

    @property
    def plugin(self) -> str:
        """The name of its plugin."""
        return self.name.partition(".")[0]

    def most_attempts(self, usual: int) -> int:
        """After how many attempts at an event it is given up, where others are after `usual`."""
        return usual if self.retries is None else self.retries + 1


def declared(name: str, types: frozenset[str], function: Function, options: Options) -> Handler:
    """The handler of that name, if function and options are fit for it.

    Raises:
        ValueError: they are not; the message names the handler and the remedy.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"{name} is a generator: it would never run; leave out the yield")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise ValueError(f"{name} should take two arguments, (event, context)") from None
    given = options.get("give_up_on", ())
    handler = Handler(
        name,
        types,
        function,
        timeout=options.get("timeout"),
        retries=options.get("retries"),
        backoff=options.get("backoff"),
        give_up_on=given if isinstance(given, tuple) else (given,),
        condition=options.get("condition"),
        after=_name_of(options.get("after"), name),
        concurrency=options.get("concurrency"),
    )
    _check_options(handler, options)
    _check_annotations(handler)
    return handler


def _name_of(other: str | Callable[..., Any] | None, name: str) -> str | None:
    if other is None:
        return None
    text = other if isinstance(other, str) else getattr(other, "__name__", "")
    return text if "." in text else f"{name.partition('.')[0]}.{text}"


def _check_options(handler: Handler, options: Options) -> None:
    name = handler.name
    for unknown in options.keys() - Options.__annotations__.keys():
        raise ValueError(f"{name}: on() has no option {unknown!r}; it has {', '.join(Options.__annotations__)}")
    timeout, retries, limit = handler.timeout, handler.retries, handler.concurrency
    if timeout is not None and not (_is_number(timeout) and 0 < timeout < math.inf):
        raise ValueError(f"{name}: timeout should be seconds, more than 0")
    if retries is not None and not (type(retries) is int and 0 <= retries <= _MOST):
        raise ValueError(f"{name}: retries should be a whole number from 0 on")
    if limit is not None and not (type(limit) is int and 1 <= limit <= _MOST):
        raise ValueError(f"{name}: concurrency should be a whole number from 1 on")
    if handler.backoff is not None and not _is_usable(handler.backoff):
        raise ValueError(
            f"{name}: backoff should be a Backoff(first=…, longest=…) of seconds, growth from 1 on, jitter up to 1"
        )
    if not all(isinstance(one, type) and issubclass(one, Exception) for one in handler.give_up_on):
        raise ValueError(f"{name}: give_up_on should be an exception class, or a tuple of them")
    if handler.condition is not None and (not callable(handler.condition) or _is_async(handler.condition)):
        raise ValueError(f"{name}: condition should be a plain function of the event")


def _is_usable(backoff: object) -> bool:
    if not isinstance(backoff, Backoff):
        return False
    numbers = backoff.first, backoff.longest, backoff.growth, backoff.jitter
    if not all(_is_number(one) and math.isfinite(one) for one in numbers):
        return False
    return 0 <= backoff.first <= backoff.longest and 1 <= backoff.growth <= _MOST_GROWTH and 0 <= backoff.jitter <= 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_annotations(handler: Handler) -> None:
    """See that what the author has written about the arguments is what will come; what cannot be read says nothing."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(handler.function))
        event, context = (hints.get(one) for one in list(inspect.signature(handler.function).parameters)[:2])
    except (NameError, TypeError, AttributeError, ValueError):
        return
    if get_origin(event) is FetchedEvent:
        announced = _classes(get_args(event)[0])
        for kind in sorted(handler.types):
            details = Issuance if concerns_issuance(kind) else Presentation
            if announced and not any(issubclass(details, one) for one in announced):
                names = " | ".join(one.__name__ for one in announced)
                raise ValueError(
                    f"{handler.name}: the details of {kind} are of class {details.__name__}; annotate the event as "
                    f"FetchedEvent[{details.__name__}] instead of FetchedEvent[{names}]"
                )
    if get_origin(context) is Context:
        wanted, given = get_args(context)[0], AsyncApi if handler.is_async else SyncApi
        if wanted in {AsyncApi, SyncApi} and wanted is not given:
            kind, fit = ("an async def", "AsyncContext") if handler.is_async else ("a plain function", "SyncContext")
            raise ValueError(f"{handler.name} is {kind}: annotate its context as {fit}")


def _classes(annotation: Any) -> tuple[type, ...]:
    """The classes of an annotation that is a class or a union of them; nothing of any other."""
    parts = get_args(annotation) or (annotation,)
    return parts if all(isinstance(one, type) for one in parts) else ()


@functools.cache
def _at(function: Function) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return beginning(code) if code else ""


@functools.cache
def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function))
