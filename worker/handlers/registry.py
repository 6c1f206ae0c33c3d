"""Plugins and their handlers: which function runs for which event types.

from credhook import Handlers

handlers = Handlers("accounts")

@handlers.on("openid4vc.issuance.completed")
async def activate(event, context): ...
"""

import difflib
import inspect
import re
import sys
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, overload

from typing_extensions import TypeVar, Unpack

from credhook.events import EVENT_TYPES, IssuanceType, PresentationType
from credhook.logs.places import place
from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.models import Issuance, Presentation
from credhook.worker.handlers.handler import Function, Handler, Options, new_handler
from credhook.worker.handlers.types import Context, Details, FetchedEvent

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
