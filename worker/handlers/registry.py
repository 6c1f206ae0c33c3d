"""Plugins and their handlers: which function runs for which event types, with which options.

from credhook import Handlers

handlers = Handlers("accounts")

@handlers.on("openid4vc.issuance.completed")
async def activate(event, context): ...
"""

import difflib
import functools
import re
import weakref
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, Literal, Protocol, TypeAlias, overload

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict, TypeVar, Unpack

from credhook.backoff import Backoff
from credhook.events import EVENT_TYPES, IssuanceType, PresentationType
from credhook.worker.api.client import Api, AsyncApi
from credhook.worker.api.models import Issuance, Presentation
from credhook.worker.handlers.arguments import Context, Details, FailedRun, FetchedEvent
from credhook.worker.handlers.functions import (
    defined_at,
    is_async,
    is_async_generator,
    is_generator,
    lifetime,
    mistakes,
    name_of,
    takes,
)

Function = Callable[[Any, Any], Any]
D = TypeVar("D", bound=Details)
OfDetails = TypeVar("OfDetails", bound=Details, default=Details)
#: Unit of a rate → its seconds.
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


#: Option → what it should be, for the message about a wrong one.
_SHOULD_BE: Final = {
    "timeout": "a number of seconds over 0",
    "retries": "a whole number from 0",
    "concurrency": "a whole number from 1",
    "rate": 'a number of runs a second, minute, hour or day: "5/s", "10/m", "100/h", "1000/d"',
    "name": "a text",
    "backoff": "a Backoff(first=…, longest=…)",
    "give_up_on": "an exception class, or a tuple of these",
    "condition": "a plain function of the event",
    "after": "a handler that is registered above, or its name",
}


@with_config(ConfigDict(strict=True, extra="forbid"))
class Limits(TypedDict, total=False):
    """The options of `Handlers.on` that CREDHOOK_HANDLER_OPTIONS can replace."""

    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Seconds that one run may take. Default: CREDHOOK_HANDLER_TIMEOUT."""
    retries: Annotated[int, Field(ge=0)]
    """How often this handler is run again for one event. Default: CREDHOOK_MAX_ATTEMPTS - 1."""
    concurrency: Annotated[int, Field(ge=1)]
    """Maximum number of concurrent runs in the whole fleet. It holds up no other handler."""
    rate: Annotated[str, Field(pattern="^[1-9][0-9]{0,5}/[smhd]$")]
    """Maximum number of runs a second, minute, hour or day in the whole fleet: "10/m". They are spread evenly."""


@with_config(ConfigDict(strict=True, extra="forbid"))
class Options(Limits, Generic[OfDetails], total=False):
    """The options of `Handlers.on`."""

    name: str
    """The handler's name within its plugin. Default: the function's name. Progress is stored under it."""
    backoff: Backoff
    """The waits between attempts, unless the handler raises `Retry(after=…)`."""
    give_up_on: type[Exception] | tuple[type[Exception], ...]
    """Exceptions after which the handler never runs again for the event."""
    condition: Callable[[FetchedEvent[OfDetails]], bool]
    """A function of the event that returns whether to run the handler. It runs on the event loop: let it be quick."""
    after: str | Callable[..., Any]
    """A handler defined above, or its name, which must be done before this handler runs.

    Otherwise handlers run concurrently.
    """


_OPTIONS: Final = TypeAdapter(Options[Any])
_LIMITS: Final = TypeAdapter(dict[str, Limits])


class ConditionReturnsAwaitable(TypeError):
    """The condition calls an `async def`. It should be a plain function."""


@dataclass(frozen=True)
class Handler:
    """One function of one plugin. `Options` explains the other attributes.

    Attributes:
        name: `plugin.function`, or its option `name`. Progress is recorded under it, so a renamed handler is a new one.
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
    give_up_on: type[Exception] | tuple[type[Exception], ...] = ()
    condition: Callable[[Any], bool] | None = None
    after: str | None = None
    concurrency: int | None = None
    rate: str | None = None

    @functools.cached_property
    def is_async(self) -> bool:
        """Return True if the function runs on the event loop, False if it runs in a thread."""
        return is_async(self.function)

    @functools.cached_property
    def at(self) -> str:
        """Return where the function begins, as `file:line`, or "" if that is unknown."""
        return defined_at(self.function)

    @property
    def plugin(self) -> str:
        """Return the name of its plugin."""
        return self.name.partition(".")[0]

    @property
    def limits(self) -> str:
        """Return the options that CREDHOOK_HANDLER_OPTIONS can replace, for people."""
        values = {name: getattr(self, name) for name in Limits.__annotations__}
        texts = {name: f"{value:g}" if isinstance(value, float) else value for name, value in values.items()}
        return " ".join(f"{name}={text}" for name, text in texts.items() if text is not None)

    @functools.cached_property
    def runs_per_second(self) -> float | None:
        """Return the rate as a number, or None without a limit."""
        number, _, unit = (self.rate or "").partition("/")
        return int(number) / _UNITS[unit] if number else None

    def wants(self, event: FetchedEvent) -> bool:
        """Return True if the handler has no condition, or if its condition holds. A condition may raise anything."""
        if self.condition is None:
            return True
        holds: object = self.condition(event)
        if isinstance(holds, Awaitable):  # An awaitable would count as true.
            if isinstance(holds, Coroutine):
                holds.close()
            raise ConditionReturnsAwaitable
        return bool(holds)

    def max_attempts(self, default: int) -> int:
        """Return the number of attempts after which the event is given up for this handler."""
        return default if self.retries is None else self.retries + 1


def _new_handler(
    name: str, types: frozenset[str], function: Function, options: Options[Any], first: str = "event"
) -> Handler:
    """Return the handler after checking the function and the options.

    `first`: the function's first argument.

    Raises:
        ValueError: the function or an option is wrong. The message names the handler.
    """
    if mistake := next(mistakes(function, first), None):
        raise ValueError(f"{name} {mistake}")
    try:
        checked: dict[str, Any] = {**_OPTIONS.validate_python(options)}
    except ValidationError as error:
        raise ValueError(f"{name}: {_first_error(error, 1, Options)}") from None
    checked.pop("name", None)
    condition = checked.get("condition")
    if condition and (is_async(condition) or is_generator(condition) or not takes(condition, 1)):
        # The coroutine of an `async def` would count as true.
        raise ValueError(f"{name}: condition: should be {_SHOULD_BE['condition']}")
    if "after" in checked:
        before = checked["after"] if isinstance(checked["after"], str) else name_of(checked["after"])
        checked["after"] = before if "." in before else f"{name.partition('.')[0]}.{before}"
    return Handler(name, types, function, **checked)


def _first_error(error: ValidationError, depth: int, options: type[Limits]) -> str:
    """Return the message, after so many names that say where the value stands."""
    wrong = error.errors()[0]
    message, place = wrong["msg"], [*map(str, wrong["loc"][:depth])]
    if wrong["type"] == "extra_forbidden":
        message = f"is no option; there is {', '.join(options.__annotations__)}"
    elif place[-1] in _SHOULD_BE:
        message = f"should be {_SHOULD_BE[place[-1]]}"
    return ": ".join([*place, message])


def _check_types(wanted: Sequence[str]) -> None:
    if not wanted or callable(wanted[0]):  # `@handlers.on()`, or `@handlers.on`.
        example = "openid4vc.issuance.completed"
        raise ValueError(f'@handlers.on names no event type: write @handlers.on("{example}"), or "*" for all')
    if "*" in wanted:
        raise ValueError('"*" stands for all ten event types: name no other beside it')
    for name in wanted:
        if name not in EVENT_TYPES:
            wrong: Iterable[object] = name if isinstance(name, list | tuple | set) else [name]
            matches = [difflib.get_close_matches(str(entry), EVENT_TYPES, n=1, cutoff=0) for entry in wrong]
            near = ", ".join(f'"{match}"' for (match,) in matches)
            raise ValueError(f'{name!r} is no event type: write @handlers.on({near}), or "*" for all')


#: Seconds that a function of `on_error` or `on_give_up` may take.
HOOK_SECONDS: Final = 10.0
#: Names are stored with every event and named by `replay --handler`.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

S = TypeVar("S")
State = TypeVar("State", default=None)

AsyncFunction: TypeAlias = Callable[[FetchedEvent[D], Context[AsyncApi, S]], Coroutine[Any, Any, None]]
PlainFunction: TypeAlias = Callable[[FetchedEvent[D], Context[Api, S]], None]
AsyncStartup: TypeAlias = Callable[[], Awaitable[S]]
PlainStartup: TypeAlias = Callable[[], S]
AsyncLifespan: TypeAlias = Callable[[], AsyncIterator[S]]
ManagedLifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[S]]
#: Plugins with different states may share a function that uses none, and so takes a plain `AsyncContext`.
AsyncHook: TypeAlias = (
    Callable[[FailedRun, Context[AsyncApi, S]], Coroutine[Any, Any, None]]
    | Callable[[FailedRun, Context[AsyncApi, None]], Coroutine[Any, Any, None]]
)
PlainHook: TypeAlias = Callable[[FailedRun, Context[Api, S]], None] | Callable[[FailedRun, Context[Api, None]], None]
AsyncShutdown: TypeAlias = Callable[[S], Awaitable[None]]
PlainShutdown: TypeAlias = Callable[[S], None]


class Registers(Protocol[D, S]):
    """The type of the decorator that `Handlers.on` returns."""

    @overload
    def __call__(self, function: AsyncFunction[D, S]) -> AsyncFunction[D, S]: ...
    @overload
    def __call__(self, function: PlainFunction[D, S]) -> PlainFunction[D, S]: ...


def _for_one_function(register: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return the method so that it says how to write `@handlers.startup()` and `startup(connect())` correctly."""

    @functools.wraps(register)
    def checked(plugin: "Handlers[Any]", *functions: Any, **options: Any) -> Any:
        name = register.__name__
        if options or len(functions) != 1:
            raise TypeError(f"{plugin.name}: write @handlers.{name} above one function, without parentheses")
        if not callable(functions[0]):
            what = type(functions[0]).__name__
            raise TypeError(f"{plugin.name}: a {what} is no {name} function: pass the function itself")
        return register(plugin, functions[0])

    return checked


#: All plugins of this process. The test kit finds a function's options here.
_plugins: "weakref.WeakSet[Handlers[Any]]" = weakref.WeakSet()


def plugins_of(function: Callable[..., Any]) -> "list[Handlers[Any]]":
    """Return the plugins that have registered the function."""
    return [plugin for plugin in _plugins if plugin.handler_of(function)]


class Handlers(Generic[State]):
    """The handlers of one plugin. `Handlers[Database]("accounts")`: its start-up function returns a `Database`."""

    def __init__(self, name: str) -> None:
        """`name`: unique among the plugins of a worker.

        Raises:
            ValueError: the name has other characters than letters, digits, `-` and `_`.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"handlers' name {name!r} should be a word of letters, digits, - and _")
        _plugins.add(self)
        self.name = name
        self._handlers: dict[str, Handler] = {}
        self.startup_function: Callable[[], Any] | None = None
        self.shutdown_function: Callable[[Any], Any] | None = None
        #: The function that stands for both, if there is one.
        self.lifespan_function: Callable[[], Any] | None = None
        #: The functions to call after a failed run, and after one that was the last.
        self.error_hooks: list[Handler] = []
        self.give_up_hooks: list[Handler] = []

    @overload
    def on(self, *types: IssuanceType, **options: Unpack[Options[Issuance]]) -> Registers[Issuance, State]: ...
    @overload
    def on(
        self, *types: PresentationType, **options: Unpack[Options[Presentation]]
    ) -> Registers[Presentation, State]: ...
    @overload
    def on(
        self, *types: IssuanceType | PresentationType | Literal["*"], **options: Unpack[Options[Details]]
    ) -> Registers[Details, State]: ...
    def on(self, *types: str, **options: Unpack[Options[Any]]) -> Any:
        """Run the decorated function, `async def` or `def`, for these event types. `"*"` stands for all ten.

        `Options` explains the options.

        Raises:
            ValueError: a type is unknown, an option or the function is wrong, or the plugin has a handler of that name.
        """
        wanted = EVENT_TYPES if types == ("*",) else types
        _check_types(wanted)

        def register(function: Function) -> Function:
            if not callable(function):
                raise TypeError(f"a {type(function).__name__} is no handler: pass the function itself")
            name = str(options.get("name", name_of(function)))
            if not _NAME.fullmatch(name):
                hint = "define it with def, or choose a name="
                raise ValueError(f"a handler of {self.name!r} has no usable name: {name!r}; {hint}")
            if (first := self._handlers.get(name)) and first.function == function:
                raise ValueError(f"{first.name} is registered already: name all its types in one @handlers.on(…)")
            if first:
                raise ValueError(f"{self.name!r} already has a handler {name!r}, at {first.at}; rename one of them")
            chosen: Options[Any] = {**options}
            if earlier := self.handler_of(options.get("after", "")):
                chosen["after"] = earlier.name
            handler = _new_handler(f"{self.name}.{name}", frozenset(wanted), function, chosen)
            before = next((earlier for earlier in self if earlier.name == handler.after), None)
            if handler.after is not None and before is None:
                problem = f"{self.name!r} does not define above it"
                raise ValueError(f"{handler.name} is to run after {handler.after}, which {problem}")
            if before is not None and not before.types & handler.types:
                raise ValueError(f"{handler.name} is to run after {before.name}, which is for other event types")
            self._handlers[name] = handler
            return function

        return register

    @overload
    def startup(self, function: AsyncStartup[State]) -> AsyncStartup[State]: ...
    @overload
    def startup(self, function: PlainStartup[State]) -> PlainStartup[State]: ...
    @_for_one_function
    def startup(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Run the decorated function, `async def` or `def`, once in each worker process before it takes events.

        Its result is `context.state`. If it fails, the worker tries again with growing pauses.

        Raises:
            ValueError: the function takes arguments, or the plugin has a start-up function already.
        """
        self._check_lifecycle("startup", function, 0)
        self.startup_function = function
        return function

    @overload
    def shutdown(self, function: AsyncShutdown[State]) -> AsyncShutdown[State]: ...
    @overload
    def shutdown(self, function: PlainShutdown[State]) -> PlainShutdown[State]: ...
    @_for_one_function
    def shutdown(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Run the decorated function with the start-up function's result when a worker process has finished its events.

        Raises:
            ValueError: the function does not take one argument, or the plugin has a shutdown function already.
        """
        self._check_lifecycle("shutdown", function, 1)
        self.shutdown_function = function
        return function

    @overload
    def lifespan(self, function: AsyncLifespan[State]) -> AsyncLifespan[State]: ...
    @overload
    def lifespan(self, function: ManagedLifespan[State]) -> ManagedLifespan[State]: ...
    @_for_one_function
    def lifespan(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Run the decorated `async def` around the life of each worker process. It yields `context.state` once.

        The code before its `yield` stands for a start-up function, and the code after it for a shutdown function.

        Raises:
            ValueError: it is no `async def` with a `yield`, takes arguments, or the plugin has such functions already.
        """
        if not is_async_generator(function) or not takes(function, 0):
            raise ValueError(
                f"{self.name}: the lifespan function should be an `async def` with a yield and no argument"
            )
        self._check_vacant("lifespan")
        self.lifespan_function = function
        self.startup_function, self.shutdown_function = lifetime(function)
        return function

    @overload
    def on_error(self, function: AsyncHook[State]) -> AsyncHook[State]: ...
    @overload
    def on_error(self, function: PlainHook[State]) -> PlainHook[State]: ...
    @_for_one_function
    def on_error(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Run the decorated function, `async def` or `def`, after each failed run of a handler of this plugin.

        It gets a `FailedRun` and a context, runs once the event's new state is stored, and cannot change that state.
        A failure is what `credhook causes` counts: not a `Retry` of the handler, nor a wait for its turn.

        Raises:
            ValueError: the function does not take two arguments.
        """
        self.error_hooks.append(self._as_hook("on_error", function))
        return function

    @overload
    def on_give_up(self, function: AsyncHook[State]) -> AsyncHook[State]: ...
    @overload
    def on_give_up(self, function: PlainHook[State]) -> PlainHook[State]: ...
    @_for_one_function
    def on_give_up(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Run the decorated function as `on_error` does, once a handler of this plugin is given up for an event.

        It also runs for a handler that never ran, because the event or the handler in its `after=` was given up.

        Raises:
            ValueError: the function does not take two arguments.
        """
        self.give_up_hooks.append(self._as_hook("on_give_up", function))
        return function

    def _as_hook(self, kind: str, function: Callable[[Any, Any], Any]) -> Handler:
        name = f"{self.name}.{name_of(function) or kind}"
        return _new_handler(name, frozenset(), function, {}, "failure")

    def _check_vacant(self, kind: str) -> None:
        """Raise `ValueError` if another function of the plugin does the same already."""
        functions = {"startup": self.startup_function, "shutdown": self.shutdown_function}
        if self.lifespan_function:
            functions = {"lifespan": self.lifespan_function}
        for other, function in functions.items():
            if function is None or (kind != other and "lifespan" not in {kind, other}):
                continue
            hint = "a lifespan function stands for startup and shutdown: keep it or them"
            if kind == other:
                hint = "do the work of both in one function"
            raise ValueError(f"{self.name!r} already has a {other} function, at {defined_at(function)}; {hint}")

    def _check_lifecycle(self, kind: str, function: Callable[..., Any], arguments: int) -> None:
        self._check_vacant(kind)
        if is_generator(function) and not is_async(function):
            hint = "register it with @handlers.lifespan"
            raise ValueError(f"{self.name}: the {kind} function is a generator or context manager: {hint}")
        if not takes(function, arguments):
            wanted = "one argument, the state" if arguments else "no argument"
            raise ValueError(f"{self.name}: the {kind} function should take {wanted}")

    def hooks(self, *, will_retry: bool, is_run: bool = True) -> list[Handler]:
        """Return the functions to call after a failed run; if not `is_run`, after a handler that was given up unrun."""
        return [*(self.error_hooks if is_run else ()), *(() if will_retry else self.give_up_hooks)]

    def handler_of(self, function: object) -> Handler | None:
        """Return the handler of this function, or None if it is not registered."""
        # `==` and not `is`, since each access to a method makes a new object.
        return next((handler for handler in self if handler.function == function), None)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())


class Registry:
    """All loaded handlers, in the order of their plugins."""

    def __init__(self, plugins: Iterable[Handlers], options: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Take the handlers with their options, or with those of CREDHOOK_HANDLER_OPTIONS.

        Raises:
            ValueError: an option is wrong, or of a handler that is not loaded.
        """
        self.plugins = tuple(plugins)
        handlers = {handler.name: handler for plugin in self.plugins for handler in plugin}
        try:
            limits = _LIMITS.validate_python(options)
        except ValidationError as error:
            raise ValueError(_first_error(error, 2, Limits)) from None
        for name, chosen in limits.items():
            if name not in handlers:
                near = difflib.get_close_matches(name, handlers, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(handlers)}"
                raise ValueError(f"{name} is not loaded; {hint}")
            handlers[name] = replace(handlers[name], **chosen)
        self.handlers: tuple[Handler, ...] = tuple(handlers.values())
        self._by_type: dict[str, tuple[Handler, ...]] = {
            name: tuple(handler for handler in self.handlers if name in handler.types) for name in EVENT_TYPES
        }

    def matching(self, event_type: str) -> tuple[Handler, ...]:
        """Return the handlers for events of that type."""
        return self._by_type.get(event_type, ())

    @property
    def types(self) -> tuple[str, ...]:
        """Return the event types that have a handler, in the specification's order."""
        return tuple(name for name in EVENT_TYPES if self.matching(name))
