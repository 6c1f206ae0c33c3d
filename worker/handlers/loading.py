"""Load plugins: the modules that CREDHOOK_HANDLERS names, or else the installed packages."""

import importlib
import sys
import threading
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click
import structlog

from credhook.logs import in_development, insist_on_logs
from credhook.logs.places import authors_frames, loaded_from
from credhook.worker.attempt.running import where_thread_is
from credhook.worker.handlers.registry import Handlers, Registry

#: Entry point group under which a package offers its `Handlers`.
ENTRY_POINTS: Final = "credhook.handlers"
#: The module with a handler that does no more than log.
LOGS_ONLY: Final = "credhook.worker.handlers.logging_handler"
#: Seconds after which an import is slow. It may wait for another system, and nothing else would report that.
SLOW_SECONDS: Final = 5.0

log = structlog.get_logger("credhook.worker")


class CannotLoad(click.ClickException):
    """A plugin is missing, does not import, or offers no handlers. The message says where, in one line.

    Exit code 2, as for any wrong setting, since a worker without the plugin would settle its events unhandled.
    """

    exit_code = 2


def load(names: Iterable[str] = (), options: Mapping[str, Any] = MappingProxyType({})) -> Registry:
    """Load the named plugins, or else every installed plugin.

    A name is `module` or `module:object`, as in `CREDHOOK_HANDLERS`. `options`: see `CREDHOOK_HANDLER_OPTIONS`.

    Raises:
        CannotLoad: a plugin cannot be loaded.
    """
    if references := {name: name for name in names}:
        current_folder = str(Path.cwd())
        if current_folder not in sys.path:  # A module may import other modules of this folder.
            sys.path.append(current_folder)
        finder = _CurrentFolder(current_folder, references)
        sys.meta_path.insert(0, finder)
        try:
            return _registry(references, options)
        finally:
            sys.meta_path.remove(finder)
    references = {
        f"entry point {entry.name!r} ({entry.value})": entry.value for entry in entry_points(group=ENTRY_POINTS)
    }
    return _registry(references, options)


def load_for_work(names: Iterable[str], options: Mapping[str, Any]) -> Registry:
    """Load the plugins of a worker, as `load` does.

    Raises:
        CannotLoad: a plugin cannot be loaded, or there is none.
    """
    registry = load(names, options)
    if not registry.plugins:
        raise CannotLoad(f"no handlers: set CREDHOOK_HANDLERS=module, or to {LOGS_ONLY}, which only logs each event")
    return registry


class _CurrentFolder:
    """Finds the modules of these references in the current folder, even if a copy is installed."""

    def __init__(self, folder: str, references: Iterable[str]) -> None:
        self._folder = folder
        self._modules = {reference.partition(":")[0].partition(".")[0] for reference in references}

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the module's spec, or None. A plain folder, which has no origin, does not count."""
        spec = PathFinder.find_spec(name, [self._folder]) if name in self._modules else None
        return spec if spec and spec.origin else None


def _registry(references: Mapping[str, str], options: Mapping[str, Any]) -> Registry:
    plugins: dict[str, Handlers] = {}
    for source, reference in references.items():
        plugin = _load(reference, source)
        insist_on_logs()  # Its module may have configured logging.
        if plugins.get(plugin.name) is plugin:  # Two modules, or two packages, offer it.
            continue
        if plugin.name in plugins:
            raise CannotLoad(f"handlers {source}: another plugin is called {plugin.name!r}; rename it")
        plugins[plugin.name] = plugin
        if not list(plugin):
            hint = "Decorate a function with @handlers.on(…), or remove the plugin from CREDHOOK_HANDLERS"
            log.warning("plugin_without_handlers", plugin=plugin.name, handlers=source, hint=hint)
    try:
        return Registry(plugins.values(), options)
    except ValueError as error:
        raise CannotLoad(f"CREDHOOK_HANDLER_OPTIONS: {error}") from None


def _load(reference: str, source: str) -> Handlers:
    module_name, _, name = reference.partition(":")
    loaded_from(module_name)
    slow = threading.Timer(SLOW_SECONDS, _log_slow_import, (source, threading.get_ident()))
    slow.daemon = True
    slow.start()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # The module is the author's code.
        if in_development() and len(authors_frames(error)) > 1:  # `CannotLoad` names only the last place.
            log.exception("handlers_not_loaded", handlers=source)
        raise CannotLoad(f"handlers {source}: {_import_error(module_name, error)}") from error
    finally:
        slow.cancel()
    # `isinstance` would also ask `__class__`, and so load what a lazy object, such as Django's settings, stands for.
    offered: dict[str, Handlers] = {
        key: value for key, value in vars(module).items() if issubclass(type(value), Handlers)
    }
    matching = list({id(value): value for key, value in offered.items() if name in {"", key}}.values())
    if len(matching) != 1:
        problem = f"{'more than one' if matching else 'no'} Handlers object {name}".rstrip()
        names = ",".join(f"{module_name}:{key}" for key in offered)
        hint = f"it offers {names}" if names else 'add handlers = Handlers("accounts") to it'
        file = getattr(module, "__file__", None) or "built-in"
        if (yours := Path(f"{module_name}.py")).is_file() and yours.resolve() != Path(file).resolve():
            hint = f"rename your {yours}: another module has that name"
        raise CannotLoad(f"handlers {source}: {module_name} ({file}) has {problem}; {hint}")
    return matching[0]


def _log_slow_import(source: str, thread: int) -> None:
    """Warn about an import that has not ended, with the author's line."""
    at = authors_frames(TimeoutError().with_traceback(where_thread_is(thread)))[-1:]
    hint = "Connect to other systems in a start-up function. It is tried again if it fails"
    log.warning("handlers_load_slowly", handlers=source, at=at, hint=hint)


def _import_error(module: str, error: BaseException) -> str:
    """Return why the import failed, with the author's line. No event is loaded yet, so the message holds no claims."""
    is_missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
    if is_missing or not module or module.startswith("."):
        return f"there is no module {module!r}; name one as in an import, such as accounts for accounts.py"
    frames = authors_frames(error)
    where = f"{frames[-1].partition(' ')[0]}: " if frames else ""
    return f"{where}{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
