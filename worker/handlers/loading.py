"""Where plugins come from: modules that are named, packages that are installed, or the handler that logs."""

import importlib
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import click

from credhook.worker.handlers.registry import Handlers, Registry

#: Entry point group under which a package offers its `Handlers`.
ENTRY_POINTS: Final = "credhook.handlers"


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
        return _together(_load(name, name) for name in chosen)
    installed = entry_points(group=ENTRY_POINTS)
    if installed:
        return _together(_load(entry.value, f"entry point {entry.name!r}") for entry in installed)
    return _together([_load("credhook.worker.handlers.logging_handler", "credhook.worker.handlers.logging_handler")])


def _together(plugins: Iterable[Handlers]) -> Registry:
    try:
        return Registry(plugins)
    except ValueError as error:
        raise CannotLoad(f"handlers: {error}") from error


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
