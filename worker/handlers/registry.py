"""Plugins and their handlers: which function runs for which event types, with which options.

from credhook import Handlers

handlers = Handlers("accounts")

@handlers.on("openid4vc.issuance.completed")
async def activate(event, context): ...
"""

import difflib
import functools
import inspect
import math
import re
import sys
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, get_args, get_origin, overload

from typing_extensions import TypedDict, TypeVar, Unpack

from credhook.backoff import Backoff
from credhook.events import EVENT_TYPES, IssuanceType, PresentationType
from credhook.logs.places import place
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.models import Issuance, Presentation, model_of
from credhook.worker.handlers.types import Context, Details, FetchedEvent

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
        return place(code.co_filename, code.co_firstlineno) if code else ""

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


#: Names are stored with every event and named by `replay --handler`.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

D = TypeVar("D", bound=Details)
S = TypeVar("S")
State = TypeVar("State", default=None)

AsyncFunction: TypeAlias = Callable[[FetchedEvent[D], Context[AsyncApi, S]], Coroutine[Any, Any, None]]
PlainFunction: TypeAlias = Callable[[FetchedEvent[D], Context[SyncApi, S]], None]
AsyncStartup: TypeAlias = Callable[[], Awaitable[S]]
PlainStartup: TypeAlias = Callable[[], S]
AsyncShutdown: TypeAlias = Callable[[S], Awaitable[None]]
PlainShutdown: TypeAlias = Callable[[S], None]


class Registers(Protocol[D, S]):
    """The type of the decorator that `Handlers.on` returns."""

    @overload
    def __call__(self, function: AsyncFunction[D, S]) -> AsyncFunction[D, S]: ...
    @overload
    def __call__(self, function: PlainFunction[D, S]) -> PlainFunction[D, S]: ...


class Handlers(Generic[State]):
    """The handlers of one plugin. `Handlers[Database]("accounts")`: its start-up function returns a `Database`."""

    def __init__(self, name: str) -> None:
        """`name`: unique among the plugins of a worker.

        Raises:
            ValueError: the name has other characters than letters, digits, `-` and `_`.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"handlers' name {name!r} should be a word of letters, digits, - and _")
        self.name = name
        #: Where the plugin was created, as `file:line`.
        self.at = _caller()
        self._handlers: dict[str, Handler] = {}
        self.startup_function: Callable[[], Any] | None = None
        self.shutdown_function: Callable[[Any], Any] | None = None

    @overload
    def on(self, *types: IssuanceType, **options: Unpack[Options]) -> Registers[Issuance, State]: ...
    @overload
    def on(self, *types: PresentationType, **options: Unpack[Options]) -> Registers[Presentation, State]: ...
    @overload
    def on(
        self, *types: IssuanceType | PresentationType | Literal["*"], **options: Unpack[Options]
    ) -> Registers[Details, State]: ...
    def on(self, *types: str, **options: Unpack[Options]) -> Any:
        """Run the decorated function, `async def` or `def`, for these event types. `"*"` stands for all ten.

        `handler.Options` explains the options.

        Raises:
            ValueError: a type is unknown, an option or the function is wrong, or the plugin has a handler of that name.
        """
        if not types:
            raise ValueError('on() wants at least one event type, or "*" for all')
        for name in types if types != ("*",) else ():
            if not isinstance(name, str):
                raise ValueError(f'on() takes event types, as in @handlers.on("{EVENT_TYPES[0]}")')  # noqa: TRY004  One class for all mistakes.
            if name not in EVENT_TYPES:
                near = difflib.get_close_matches(name, EVENT_TYPES, n=1)
                known = f"did you mean {near[0]!r}?" if near else "credhook.EVENT_TYPES lists all types"
                raise ValueError(f"{name!r} is no event type; {known}")
        wanted = frozenset(EVENT_TYPES if types == ("*",) else types)

        def register(function: Function) -> Function:
            name = getattr(function, "__name__", "")
            if not _NAME.fullmatch(name):
                raise ValueError(f"a handler of {self.name!r} has no usable name: {name!r}")
            if first := self._handlers.get(name):
                at = first.at or "another place"
                raise ValueError(f"{self.name!r} already has a handler {name!r}, at {at}; rename one of them")
            handler = new_handler(f"{self.name}.{name}", wanted, function, options)
            if handler.after is not None and handler.after not in [one.name for one in self]:
                raise ValueError(f"{handler.name} is to run after {handler.after}, which is not defined above it")
            self._handlers[name] = handler
            return function

        return register

    @overload
    def startup(self, function: AsyncStartup[State]) -> AsyncStartup[State]: ...
    @overload
    def startup(self, function: PlainStartup[State]) -> PlainStartup[State]: ...
    def startup(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Run the decorated function, `async def` or `def`, once in each worker process before it takes events.

        Its result is `context.state`. If it fails, the worker tries again with growing pauses.

        Raises:
            ValueError: the function takes arguments, or the plugin has a start-up function already.
        """
        self._check_hook("startup", self.startup_function, function)
        self.startup_function = function
        return function

    @overload
    def shutdown(self, function: AsyncShutdown[State]) -> AsyncShutdown[State]: ...
    @overload
    def shutdown(self, function: PlainShutdown[State]) -> PlainShutdown[State]: ...
    def shutdown(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Run the decorated function with the start-up function's result when a worker process has finished its events.

        Raises:
            ValueError: the function does not take one argument, or the plugin has a shutdown function already.
        """
        self._check_hook("shutdown", self.shutdown_function, function, None)
        self.shutdown_function = function
        return function

    def _check_hook(self, kind: str, existing: object, function: Callable[..., Any], *arguments: object) -> None:
        if existing is not None:
            raise ValueError(f"{self.name!r} already has a {kind} function")
        try:
            inspect.signature(function).bind(*arguments)
        except ValueError:  # Some built-in functions have no signature.
            return
        except TypeError:
            takes = "one argument, the state" if arguments else "no argument"
            raise ValueError(f"{self.name}: the {kind} function should take {takes}") from None

    def handler_of(self, function: Callable[..., Any]) -> Handler | None:
        """Return the handler of this function, or None if it is not registered."""
        return next((one for one in self if one.function is function), None)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __repr__(self) -> str:
        return f"Handlers({self.name!r}, {', '.join(self._handlers)})"


def _caller() -> str:
    """Return where the plugin is being created, as `file:line`."""
    frame = sys._getframe(2)  # noqa: SLF001  `inspect.stack` reads source files.
    if frame.f_code.co_filename == typing.__file__ and frame.f_back:  # `Handlers[State](…)` calls through typing.
        frame = frame.f_back
    return place(frame.f_code.co_filename, frame.f_lineno)


class Registry:
    """All loaded handlers, in the order of their plugins."""

    def __init__(self, plugins: Iterable[Handlers]) -> None:
        """Raises: ValueError: two plugins have the same name, or one is named twice."""
        self.plugins = tuple(plugins)
        known: dict[str, Handlers] = {}
        for plugin in self.plugins:
            if (first := known.setdefault(plugin.name, plugin)) is not plugin:
                raise ValueError(f"two plugins are called {plugin.name!r}, at {first.at} and {plugin.at}; rename one")
        if len(known) < len(self.plugins):
            raise ValueError(f"one of {', '.join(known)} is named twice; name each once")
        self.handlers: tuple[Handler, ...] = tuple(handler for plugin in self.plugins for handler in plugin)
        self._by_type = {name: tuple(one for one in self.handlers if name in one.types) for name in EVENT_TYPES}

    def matching(self, event_type: str) -> tuple[Handler, ...]:
        """Return the handlers for events of that type."""
        return self._by_type.get(event_type, ())

    @property
    def types(self) -> tuple[str, ...]:
        """Return the event types that have a handler, in the specification's order."""
        return tuple(name for name in EVENT_TYPES if self.matching(name))
