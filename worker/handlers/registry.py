"""The registry: which function runs for which event types, and where plugins come from.

from credhook import Handlers

handlers = Handlers("accounts")

@handlers.on("openid4vc.issuance.completed")
async def activate(event, context): ...
"""

import difflib
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import structlog

from credhook.events import EVENT_TYPES
from credhook.worker.api.models import Issuance, Presentation
from credhook.worker.handlers.retry import GiveUp, Retry

__all__ = ["Context", "FetchedEvent", "GiveUp", "Handler", "Handlers", "Registry", "Retry"]

#: Entry point group under which a package offers its `Handlers`.
ENTRY_POINTS: Final = "credhook.handlers"

#: A handler's name is stored with every event that it has handled, and is what `replay --handler` names.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class FetchedEvent:
    """An event with what it refers to: the first argument of a handler.

    Attributes:
        type: one of the ten event types.
        resource_id: the issuance's or presentation's id.
        webhook_id: the id of the delivery that brought it; the same for all its repetitions.
        received_at: when the receiver stored it, in UTC.
        attempt: which attempt this is, counted from 1.
        details: the resource as the platform describes it now, which may be later than the event.
    """

    type: str
    resource_id: str
    webhook_id: str
    received_at: datetime
    attempt: int
    details: Issuance | Presentation


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler works with: the second argument.

    Attributes:
        api: the platform's client; asynchronous for `async def` handlers, synchronous for plain ones.
        log: a logger bound to the event.
        idempotency_key: the same for every run of this handler for this event, and for no other.
        stale: whether a later state of the same issuance or presentation has been handled before: events arrive in
            any order. What the handler writes should then not overwrite what it wrote for the later one.
    """

    api: Any  # AsyncApi | SyncApi: which of the two follows from the handler, which a type cannot say here.
    log: structlog.stdlib.BoundLogger
    idempotency_key: str
    stale: bool = False


Function = Callable[[FetchedEvent, Context], Any]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Handler:
    """One function of one plugin.

    Attributes:
        name: `plugin.function`; progress is recorded under it, so renaming a function makes it a new handler.
        types: the event types that it runs for.
        function: what is called with a `FetchedEvent` and a `Context`.
    """

    name: str
    types: frozenset[str]
    function: Function

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop; otherwise it runs in a thread."""
        return _is_async(self.function)


@functools.cache
def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function))


class Handlers:
    """The handlers of one plugin."""

    def __init__(self, name: str) -> None:
        """`name`: unique among all plugins that are loaded together.

        Raises:
            ValueError: the name is not a word of letters, digits, `-` and `_`.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"handlers' name {name!r} should be a word of letters, digits, - and _")
        self.name = name
        self._handlers: dict[str, Handler] = {}

    def on(self, *types: str) -> Callable[[F], F]:
        """Run the decorated function, `async def` or `def`, for these event types; `"*"` stands for all ten.

        Raises:
            ValueError: a type is unknown, or the plugin already has a handler of that name.
        """
        wanted = frozenset(EVENT_TYPES if types == ("*",) else types)
        if not wanted:
            raise ValueError('on() wants at least one event type, or "*" for all')
        for unknown in sorted(wanted - set(EVENT_TYPES)):
            near = difflib.get_close_matches(unknown, EVENT_TYPES, n=1)
            raise ValueError(f"{unknown!r} is no event type" + (f"; did you mean {near[0]!r}?" if near else ""))

        def register(function: F) -> F:
            name = getattr(function, "__name__", "")
            if not _NAME.fullmatch(name):
                raise ValueError(f"a handler of {self.name!r} has no usable name: {name!r}")
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise ValueError(f"{self.name}.{name} is a generator: it would never run; leave out the yield")
            try:
                inspect.signature(function).bind(None, None)
            except TypeError:
                raise ValueError(f"{self.name}.{name} should take two arguments, (event, context)") from None
            if name in self._handlers:
                raise ValueError(f"{self.name!r} already has a handler {name!r}")
            self._handlers[name] = Handler(f"{self.name}.{name}", wanted, function)
            return function

        return register

    def __iter__(self) -> Any:
        return iter(self._handlers.values())

    def __repr__(self) -> str:
        return f"Handlers({self.name!r}, {', '.join(self._handlers)})"


class Registry:
    """All handlers that are loaded, in the order of their plugins."""

    def __init__(self, plugins: Iterable[Handlers]) -> None:
        """Raises: CannotLoad: two plugins have the same name."""
        self.plugins = tuple(plugins)
        names = [plugin.name for plugin in self.plugins]
        for name in names:
            if names.count(name) > 1:
                raise CannotLoad(f"two plugins are called {name!r}; rename one of them")
        self.handlers: tuple[Handler, ...] = tuple(handler for plugin in self.plugins for handler in plugin)
        self._by_type = {name: tuple(one for one in self.handlers if name in one.types) for name in EVENT_TYPES}

    def matching(self, event_type: str) -> tuple[Handler, ...]:
        """The handlers that run for an event of that type."""
        return self._by_type.get(event_type, ())

    @property
    def types(self) -> tuple[str, ...]:
        """The event types that any handler wants, in the specification's order."""
        return tuple(name for name in EVENT_TYPES if self.matching(name))


class CannotLoad(click.ClickException):
    """A plugin is not there, does not import, or offers no handlers; the message names it.

    On the command line it ends the command with exit code 2, like any other wrong setting: a worker without the plugin
    would settle its events unhandled.
    """

    exit_code = 2


def load(names: Iterable[str] = ()) -> Registry:
    """Load the plugins that are named, or else every one that is installed, or else the one that logs.

    Args:
        names: `module` or `module:object` each, as in `CREDHOOK_HANDLERS`.

    Raises:
        CannotLoad: see there.
    """
    chosen = tuple(names)
    if chosen:
        if str(Path.cwd()) not in sys.path:  # `CREDHOOK_HANDLERS=handlers` means the handlers.py where we were started.
            sys.path.append(str(Path.cwd()))
        return Registry(_load(name, name) for name in chosen)
    installed = entry_points(group=ENTRY_POINTS)
    if installed:
        return Registry(_load(entry.value, f"entry point {entry.name!r}") for entry in installed)
    return Registry([_load("credhook.worker.handlers.logging_handler", "credhook.worker.handlers.logging_handler")])


def _load(reference: str, known_as: str) -> Handlers:
    module_name, _, path = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in filter(None, path.split(".")):
            found = getattr(found, attribute)
    except (Exception, SystemExit) as error:
        # Whatever a module does when it is imported, the operator wants its name and the reason, on one line.
        raise CannotLoad(f"handlers {known_as}: {type(error).__name__}: {error}") from error
    if isinstance(found, Handlers):
        return found
    offered = [value for value in vars(found).values() if isinstance(value, Handlers)] if not path else []
    if len(offered) != 1:
        number = "no" if not offered else "more than one"
        raise CannotLoad(f"handlers {known_as}: holds {number} Handlers object; name it as {module_name}:object")
    return offered[0]
