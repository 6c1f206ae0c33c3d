"""Load plugins: modules named in CREDHOOK_HANDLERS, installed packages, or the handler that logs."""

import difflib
import importlib
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click
import structlog

from credhook.logs import in_development
from credhook.logs.places import authors_function, is_authors, loaded_from, place
from credhook.worker.handlers.registry import Handlers, Registry

#: Entry point group under which a package offers its `Handlers`.
ENTRY_POINTS: Final = "credhook.handlers"
_BUILT_IN: Final = "credhook.worker.handlers.logging_handler"

log = structlog.get_logger("credhook.worker")


class CannotLoad(click.ClickException):
    """A plugin is missing, does not import, or offers no handlers. The message says where, in one line.

    Exit code 2, like any wrong setting: a worker without the plugin would settle its events unhandled.
    """

    exit_code = 2


def load(names: Iterable[str] = ()) -> Registry:
    """Load the named plugins, else every installed plugin, else the handler that logs.

    A name is `module` or `module:object`, as in `CREDHOOK_HANDLERS`.

    Raises:
        CannotLoad: a plugin cannot be loaded.
    """
    references = {name: name for name in names}
    if references:
        if str(Path.cwd()) not in sys.path:  # `CREDHOOK_HANDLERS=handlers` means handlers.py in the current folder.
            sys.path.append(str(Path.cwd()))
    else:
        for entry in entry_points(group=ENTRY_POINTS):
            references[f"entry point {entry.name!r}" + (f" of {entry.dist.name}" if entry.dist else "")] = entry.value
    if not references:
        hint = "Events are only logged. Set CREDHOOK_HANDLERS=module to load the handlers of a module"
        log.warning("handlers_not_named", hint=hint)
        references[_BUILT_IN] = _BUILT_IN
    try:
        registry = Registry([_load(reference, source) for source, reference in references.items()])
    except ValueError as error:
        raise CannotLoad(f"handlers: {error}") from error
    for plugin in registry.plugins:
        if not list(plugin):
            hint = "Decorate a function with @handlers.on(…), or remove the plugin from CREDHOOK_HANDLERS"
            log.warning("plugin_without_handlers", plugin=plugin.name, at=plugin.at, hint=hint)
    return registry


def _load(reference: str, source: str) -> Handlers:
    module_name, _, path = reference.partition(":")
    loaded_from(module_name)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # The module is the author's code.
        if in_development():
            log.exception("handlers_not_loaded", handlers=source)
        raise CannotLoad(f"handlers {source}: {_import_error(module_name, error)}") from error
    offered = {id(value): name for name, value in reversed(vars(module).items()) if isinstance(value, Handlers)}
    names = ",".join(f"{module_name}:{name}" for name in reversed(offered.values()))
    hint = f"it offers {names}" if names else 'add handlers = Handlers("accounts") to it'
    if not path and len(offered) != 1:
        number = "more than one" if offered else "no"
        raise CannotLoad(f"handlers {source}: {module_name} holds {number} Handlers object; {hint}")
    return _find(module, path or next(iter(offered.values())), f"handlers {source}", hint)


def _find(module: ModuleType, path: str, source: str, hint: str) -> Handlers:
    found: Any = module
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise CannotLoad(f"{source}: {module.__name__} has no {path!r}; {hint}")
        found = getattr(found, attribute)
    if not isinstance(found, Handlers):
        raise CannotLoad(f"{source}: {path!r} is no Handlers object but of type {type(found).__name__}; {hint}")
    return found


def _import_error(module: str, error: BaseException) -> str:
    """Return why the import failed, with the author's line. No event is loaded yet, so the message holds no claims."""
    is_missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
    if is_missing or not module or module.startswith("."):
        installed = {entry.value.partition(":")[0] for entry in entry_points(group=ENTRY_POINTS)}
        known = sorted(installed | {path.stem for path in Path.cwd().glob("*.py")})
        near = difflib.get_close_matches(module.removesuffix(".py").strip("./").replace("/", "."), known, n=1)
        return f"there is no module {module!r}" + (f"; did you mean {near[0]}?" if near else "")
    where = ""
    if isinstance(error, SyntaxError) and error.filename and is_authors(error.filename):
        where = f"{place(error.filename, error.lineno or 0)}: "
    elif found := authors_function(error):
        where = f"{found[1].partition(' ')[0]}: "
    said = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{where}{type(error).__name__}: {said}".removesuffix(": ")
