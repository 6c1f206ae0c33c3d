"""Why a plugin cannot be loaded, in one line for its author: what, where, what to do."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from traceback import walk_tb
from typing import Final

import click

from credhook.logs.places import authors_places, is_authors, place

#: The modules whose own complaints need no class of error before them.
_DECLARING: Final = {"credhook.worker.handlers.registry", "credhook.worker.handlers.handler"}
#: Of the modules that could have been meant.
_MOST_NAMED: Final = 10


class CannotLoad(click.ClickException):
    """A plugin is not there, does not import, or offers no handlers; the message names it.

    On the command line it ends the command with exit code 2, like any other wrong setting: a worker without the plugin
    would settle its events unhandled.
    """

    exit_code = 2


def is_missing(module: str, error: BaseException) -> bool:
    """Whether it is the module itself, or a package that it is in, that is not there, and not one that it imports."""
    if not module or module.startswith("."):
        return True
    return isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")


def no_such_module(module: str, folder: Path, installed: Iterable[str]) -> str:
    """Say so, with the likely ones of the folder and of the entry points that are installed, `module:object` each."""
    known = {entry.partition(":")[0] for entry in installed} | _modules(folder)
    wanted = module.removesuffix(".py").strip("./").replace("/", ".")
    near = [wanted] if wanted in known else difflib.get_close_matches(wanted, sorted(known), n=3)
    if near:
        return f"there is no module {module!r}; did you mean {' or '.join(near)}?"
    here = f"here are {', '.join(sorted(known)[:_MOST_NAMED])}" if known else "there is none here"
    return f"there is no module {module!r}; in {folder.name or folder} and among what is installed, {here}"


def _modules(folder: Path) -> set[str]:
    files = {path.stem for path in folder.glob("*.py") if path.stem.isidentifier()}
    return files | {path.parent.name for path in folder.glob("*/__init__.py") if path.parent.name.isidentifier()}


def on_import(error: BaseException) -> str:
    """What a module has raised when it was imported, and where.

    What the error says is shown: it is the author's code that speaks, and there is no event yet that it could tell of.
    """
    way = authors_places(error)
    if isinstance(error, SyntaxError) and error.filename and is_authors(error.filename):
        way.append(f"{place(error.filename, error.lineno or 0)} <module>")
    where = f"{way[-1].partition(' ')[0]}: " if way else ""
    by_way_of = f" (by way of {', '.join(way)})" if len(way) > 1 else ""
    return where + _reason(error) + by_way_of


def _reason(error: BaseException) -> str:
    name, said = type(error).__name__, " ".join(str(error).split())
    if isinstance(error, SystemExit):
        return f"{name}: it ends the process when it is imported; keep that below `if __name__ == '__main__':`"
    if isinstance(error, SyntaxError):
        return f"{name}: {error.msg}"
    if isinstance(error, ModuleNotFoundError):
        return f"{name}: {said}; install it beside credhook, or correct the import"
    came_through = list(walk_tb(error.__traceback__))
    if isinstance(error, ValueError) and came_through[-1][0].f_globals.get("__name__") in _DECLARING:
        return said
    return f"{name}: {said}".removesuffix(": ")
