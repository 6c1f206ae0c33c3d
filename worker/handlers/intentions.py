"""Signs that somebody meant to load handlers, where none are named: what a start without them should not pass over."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from credhook.misspelt import misspelt

#: Modules of the folder that are looked into, and bytes of each.
_MOST_MODULES, _MOST_BYTES = 100, 65_536
_USES_US: Final = re.compile(r"^\s*(from|import) credhook\b.*?\bHandlers\(", re.MULTILINE | re.DOTALL)


def intentions(environment: Mapping[str, str], folder: Path) -> list[tuple[str, str]]:
    """What suggests that handlers were meant to be loaded, and for each what to do, the surest first."""
    return [*_in_environment(environment), *_in_folder(folder)]


def _in_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in misspelt(environment):
        if name.upper().startswith("CREDHOOK_HANDLE"):
            yield name, "it should be CREDHOOK_HANDLERS"
    if "CREDHOOK_HANDLERS" in environment:
        yield "CREDHOOK_HANDLERS", "it is set, and names nothing"


def _in_folder(folder: Path) -> Iterator[tuple[str, str]]:
    if "credhook.handlers" in _text(folder / "pyproject.toml"):
        yield "pyproject.toml", "the package is not installed here: pip install -e ."
    if "CREDHOOK_HANDLERS" in _text(folder / ".env"):
        yield ".env", "nothing reads it by itself: export what it holds"
    for module in sorted(folder.glob("*.py"))[:_MOST_MODULES]:
        if module.name == "handlers.py" or _USES_US.search(_text(module)):
            yield module.name, f"CREDHOOK_HANDLERS={module.stem} loads it"


def _text(path: Path) -> str:
    """The beginning of a file; nothing if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace")
    return ""
