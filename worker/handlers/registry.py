"""The registry: which function runs for which event types.

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

from credhook.events import EVENT_TYPES
from credhook.logs.places import place
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.models import Issuance, Presentation
from credhook.worker.api.threads import SyncApi
from credhook.worker.handlers.given import Context, Details, FetchedEvent, IssuanceType, PresentationType
from credhook.worker.handlers.handler import Function, Handler, Options, declared

#: A handler's name is stored with every event that it has handled, and is what `replay --handler` names.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
#: Where the ten are to be seen.
_SHOWN: Final = "credhook.EVENT_TYPES holds the ten that there are"

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
    """What `Handlers.on` gives: it takes a function that is fit for the event types, and gives it back."""

    @overload
    def __call__(self, function: AsyncFunction[D, S]) -> AsyncFunction[D, S]: ...
    @overload
    def __call__(self, function: PlainFunction[D, S]) -> PlainFunction[D, S]: ...


class Handlers(Generic[State]):
    """The handlers of one plugin. `Handlers[Database]("accounts")` says what its start-up returns."""

    def __init__(self, name: str) -> None:
        """`name`: unique among all plugins that are loaded together.

        Raises:
            ValueError: the name is not a word of letters, digits, `-` and `_`.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"handlers' name {name!r} should be a word of letters, digits, - and _")
        self.name = name
        #: Where it was made, for whoever looks for it.
        self.at = _caller()
        self._handlers: dict[str, Handler] = {}
        self._startup: Callable[[], Any] | None = None
        self._shutdown: Callable[[Any], Any] | None = None

    @overload
    def on(self, *types: IssuanceType, **options: Unpack[Options]) -> Registers[Issuance, State]: ...
    @overload
    def on(self, *types: PresentationType, **options: Unpack[Options]) -> Registers[Presentation, State]: ...
    @overload
    def on(
        self, *types: IssuanceType | PresentationType | Literal["*"], **options: Unpack[Options]
    ) -> Registers[Details, State]: ...
    def on(self, *types: str, **options: Unpack[Options]) -> Any:
        """Run the decorated function, `async def` or `def`, for these event types; `"*"` stands for all ten.

        The options are those of `handler.Options`.

        Raises:
            ValueError: a type is unknown, an option or the function is not fit, or the plugin already has a handler of
                that name.
        """
        wanted = _wanted(types)

        def register(function: Function) -> Function:
            name = getattr(function, "__name__", "")
            if not _NAME.fullmatch(name):
                raise ValueError(f"a handler of {self.name!r} has no usable name: {name!r}")
            handler = declared(f"{self.name}.{name}", wanted, function, options)
            if name in self._handlers:
                raise ValueError(_twice(f"{self.name!r} already has a handler {name!r}", self._handlers[name]))
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

        What it returns is `context.state`. When it fails, it is tried again, with growing pauses.

        Raises:
            ValueError: it takes arguments, or there is one already.
        """
        self._startup = self._hook("startup", self._startup, function)
        return function

    @overload
    def shutdown(self, function: AsyncShutdown[State]) -> AsyncShutdown[State]: ...
    @overload
    def shutdown(self, function: PlainShutdown[State]) -> PlainShutdown[State]: ...
    def shutdown(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Run the decorated function with what the start-up returned, when a worker process has ended its events.

        Raises:
            ValueError: it does not take one argument, or there is one already.
        """
        self._shutdown = self._hook("shutdown", self._shutdown, function, None)
        return function

    def _hook(self, what: str, before: object, function: Callable[..., Any], *arguments: object) -> Callable[..., Any]:
        if before is not None:
            raise ValueError(f"{self.name!r} already has a {what} function")
        try:
            inspect.signature(function).bind(*arguments)
        except ValueError:  # Of a built-in one nobody knows what it takes.
            return function
        except TypeError:
            takes = "one argument, the state" if arguments else "no argument"
            raise ValueError(f"{self.name}: the {what} function should take {takes}") from None
        return function

    @property
    def hooks(self) -> tuple[Callable[[], Any] | None, Callable[[Any], Any] | None]:
        """The functions for start-up and shutdown."""
        return self._startup, self._shutdown

    def handler_of(self, function: Callable[..., Any]) -> Handler | None:
        """What the function is registered as; None if it is not."""
        return next((one for one in self if one.function is function), None)

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __repr__(self) -> str:
        return f"Handlers({self.name!r}, {', '.join(self._handlers)})"


def _wanted(types: tuple[str, ...]) -> frozenset[str]:
    """The event types that a handler asks for, or ValueError."""
    if not types:
        raise ValueError('on() wants at least one event type, or "*" for all')
    for one in types if types != ("*",) else ():
        if not isinstance(one, str):
            raise ValueError(f'on() takes event types, as in @handlers.on("{EVENT_TYPES[0]}")')  # noqa: TRY004  One kind.
        if one not in EVENT_TYPES:
            near = difflib.get_close_matches(one, EVENT_TYPES, n=1)
            raise ValueError(f"{one!r} is no event type; " + (f"did you mean {near[0]!r}?" if near else _SHOWN))
    return frozenset(EVENT_TYPES if types == ("*",) else types)


def _twice(what: str, first: Handler) -> str:
    return f"{what}, at {first.at or 'another place'}; rename one of them: progress is recorded under the name"


def _caller() -> str:
    """Where the plugin is being made, `file:line`."""
    frame = sys._getframe(2)  # noqa: SLF001  Nothing else is as quick.
    if frame.f_code.co_filename == typing.__file__ and frame.f_back:  # `Handlers[State](…)` is called by it.
        frame = frame.f_back
    return place(frame.f_code.co_filename, frame.f_lineno)


class Registry:
    """All handlers that are loaded, in the order of their plugins."""

    def __init__(self, plugins: Iterable[Handlers]) -> None:
        """Raises: ValueError: two plugins have the same name."""
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
        """The handlers that run for an event of that type."""
        return self._by_type.get(event_type, ())

    @property
    def types(self) -> tuple[str, ...]:
        """The event types that any handler wants, in the specification's order."""
        return tuple(name for name in EVENT_TYPES if self.matching(name))
