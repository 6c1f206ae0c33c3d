"""Which handlers are meant, and where their files are."""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from credhook.sandbox.local.environment import CannotStart

#: The entry point group under which a package offers its handlers.
_GROUP: Final = "credhook.handlers"
_REFERENCE: Final = re.compile(r"\w+(\.\w+)*(:\w+(\.\w+)*)?")


class NoModule(Exception):
    """What was named is no module; the message says what to name."""


@dataclass(frozen=True)
class Modules:
    """The author's modules, as `CREDHOOK_HANDLERS` takes them, and where they are named; none: the one that logs."""

    names: tuple[str, ...]
    source: str

    def folders(self, here: Path) -> tuple[Path, ...]:
        """Where a file that is saved may be theirs: the current folder, and packages that are elsewhere."""
        if not self.names:
            return ()
        found = (place for name in self.names for place in _places(name.partition(":")[0].partition(".")[0], here))
        return (here, *(place for place in dict.fromkeys(found) if not place.is_relative_to(here)))


def choose(named: Sequence[str], environ: Mapping[str, str], here: Path) -> Modules:
    """The modules that are meant: those named, or else the first that this folder or this installation offers.

    Raises:
        NoModule: a file is named, or something else that cannot be imported.
        CannotStart: pyproject.toml cannot be read.
    """
    for names, source in _offers(named, environ, here):
        if names:
            return Modules(names, source)
    return Modules((), "")


def _offers(named: Sequence[str], environ: Mapping[str, str], here: Path) -> Iterable[tuple[tuple[str, ...], str]]:
    yield _checked(named), "the command line"
    variable = environ.get("CREDHOOK_HANDLERS", "")
    yield tuple(part.strip() for part in variable.split(",") if part.strip()), "CREDHOOK_HANDLERS"
    yield _in_project(here / "pyproject.toml"), "pyproject.toml"
    yield ("handlers",) if (here / "handlers.py").is_file() else (), "handlers.py"
    yield tuple(entry.value for entry in entry_points(group=_GROUP)), "an installed package"


def _checked(named: Sequence[str]) -> tuple[str, ...]:
    for name in named:
        if name.endswith(".py") or not _REFERENCE.fullmatch(name):
            near = re.sub(r"\W+", ".", name.removesuffix(".py")).strip(".")
            raise NoModule(f"{name!r} is no module; name it as in an import" + (f": {near}" if near else ""))
    return tuple(named)


def _in_project(path: Path) -> tuple[str, ...]:
    """The handlers that the project in this folder offers."""
    try:
        project: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        offered = project["project"]["entry-points"][_GROUP]
        return tuple(map(str, offered.values()))
    except (FileNotFoundError, KeyError):
        return ()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CannotStart(f"pyproject.toml cannot be read: {error}") from error


def _places(name: str, here: Path) -> Iterable[Path]:
    """A package's folders, or a module's file; nothing while it does not exist."""
    spec = PathFinder.find_spec(name, [*sys.path, str(here)])
    if spec is None:
        return ()
    if spec.submodule_search_locations:
        return [Path(each) for each in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin else ()
