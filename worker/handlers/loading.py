"""Where plugins come from: modules that are named, packages that are installed, or the handler that logs."""

import importlib
import os
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import structlog

from credhook.logs.development import in_development
from credhook.logs.places import loaded_from
from credhook.worker.handlers.cannot_load import CannotLoad, is_missing, no_such_module, on_import
from credhook.worker.handlers.intentions import intentions
from credhook.worker.handlers.registry import Handlers, Registry

__all__ = ["CannotLoad", "load"]

#: Entry point group under which a package offers its `Handlers`.
ENTRY_POINTS: Final = "credhook.handlers"
_BUILT_IN: Final = "credhook.worker.handlers.logging_handler"

log = structlog.get_logger("credhook.worker")


def load(names: Iterable[str] = ()) -> Registry:
    """Load the plugins that are named, or else every one that is installed, or else the one that logs.

    A name is `module` or `module:object`, as in `CREDHOOK_HANDLERS`.

    Raises:
        CannotLoad: see there.
    """
    chosen = tuple(names)
    if chosen:
        if str(Path.cwd()) not in sys.path:  # `CREDHOOK_HANDLERS=handlers` means the handlers.py where we were started.
            sys.path.append(str(Path.cwd()))
        return _together(_load(name, name) for name in chosen)
    if installed := entry_points(group=ENTRY_POINTS):
        return _together(_load(entry.value, _known_as(entry)) for entry in installed)
    _say_that_none_are_named()
    return _together([_load(_BUILT_IN, _BUILT_IN)])


def _say_that_none_are_named() -> None:
    """Warn if others seem to be meant than the one that only logs."""
    if found := intentions(os.environ, Path.cwd()):
        hint = "; ".join(f"{what}: {remedy}" for what, remedy in found)
        log.warning("handlers_not_named", found=[what for what, _ in found], hint=hint)
    else:
        log.info("handlers_not_named", hint="events are only logged; CREDHOOK_HANDLERS=module loads the handlers in it")


def _known_as(entry: EntryPoint) -> str:
    package = f" of {entry.dist.name}" if entry.dist else ""
    return f"entry point {entry.name!r}{package}"


def _together(plugins: Iterable[Handlers]) -> Registry:
    try:
        registry = Registry(plugins)
    except ValueError as error:
        raise CannotLoad(f"handlers: {error}") from error
    for plugin in registry.plugins:
        if not list(plugin):
            hint = "decorate a function with @handlers.on(…), or name the plugin no more"
            log.warning("plugin_without_handlers", plugin=plugin.name, at=plugin.at, hint=hint)
    return registry


def _load(reference: str, known_as: str) -> Handlers:
    module_name, _, path = reference.partition(":")
    loaded_from(module_name)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if in_development():
            log.exception("handlers_not_loaded", handlers=known_as)
        # Whatever a module does when it is imported, the operator wants its name and the reason, on one line.
        if is_missing(module_name, error):
            offered = [entry.value for entry in entry_points(group=ENTRY_POINTS)]
            why = no_such_module(module_name, Path.cwd(), offered)
        else:
            why = on_import(error)
        raise CannotLoad(f"handlers {known_as}: {why}") from error
    try:
        return _named(module, path) if path else _only(module)
    except LookupError as error:
        raise CannotLoad(f"handlers {known_as}: {error.args[0]}") from error


def _named(module: ModuleType, path: str) -> Handlers:
    """The object of that name, or LookupError with what is wrong."""
    found: Any = module
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise LookupError(f"{module.__name__} has no {path!r}; {_offer(module)}")
        found = getattr(found, attribute)
    if isinstance(found, Handlers):
        return found
    raise LookupError(f"{path!r} is no Handlers object but of type {type(found).__name__}; {_offer(module)}")


def _only(module: ModuleType) -> Handlers:
    """The one Handlers object of the module, or LookupError with what is wrong."""
    offered = _offered(module)
    if len(offered) == 1:
        return offered.popitem()[1]
    number = "more than one" if offered else "no"
    raise LookupError(f"{module.__name__} holds {number} Handlers object; {_offer(module)}")


def _offered(module: ModuleType) -> dict[str, Handlers]:
    """The Handlers objects of a module by their names; one that has several by the first."""
    objects = {
        id(value): (name, value) for name, value in reversed(vars(module).items()) if isinstance(value, Handlers)
    }
    return dict(reversed(objects.values()))


def _offer(module: ModuleType) -> str:
    """What could be named instead."""
    names = ",".join(f"{module.__name__}:{name}" for name in _offered(module))
    return f"it offers {names}" if names else 'it should have one, as in handlers = Handlers("accounts")'
