"""Whose code it is that a line stands in, and how its place is written: authors of handlers look for their own line."""

import os
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Final

#: Ours, with the links to the rooms that stand at the top: every name of ours begins with this folder.
_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD_LIBRARY: Final = f"{Path(os.__file__).parent}{os.sep}"
#: Where installers put other people's code.
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

#: Where the author's function begins that runs now: for what Python reports only after it, at a line of ours.
runs_now: ContextVar[str] = ContextVar("runs_now", default="")

#: Folders of installed packages, and files, that handlers were loaded from: there it is the author's code all the same.
_loaded_from: set[str] = set()


def loaded_from(module: str) -> None:
    """Count a module's whole package, if there is one, as its author's code from now on, for this process."""
    try:
        spec = find_spec(module.partition(".")[0])
    except ValueError:  # What is loaded under that name has no file.
        return
    if spec is not None:
        folders = [f"{folder}{os.sep}" for folder in spec.submodule_search_locations or ()]
        _loaded_from.update(one for one in folders or [spec.origin or ""] if one and not one.startswith(_OURS))
        is_authors.cache_clear()


@cache
def is_authors(filename: str) -> bool:
    """Whether the file is a handler author's: not ours, not Python's, and not that of a library."""
    if filename.startswith("<"):  # Nobody's: `<frozen importlib._bootstrap>`, `<string>`.
        return False
    if any(filename.startswith(place) for place in _loaded_from):
        return True
    return not (filename.startswith((_OURS, _STANDARD_LIBRARY)) or any(part in filename for part in _INSTALLED))


def place(filename: str, line: int) -> str:
    """`folder/file:line`, which says enough."""
    return f"{'/'.join(filename.split('/')[-2:])}:{line}"


def beginning(code: CodeType) -> str:
    """Where a function begins."""
    return place(code.co_filename, code.co_firstlineno)


def authors_calls(error: BaseException) -> list[tuple[FrameType, int]]:
    """Each frame of authors' code that an error came through, with its line, the innermost last."""
    return [(frame, line) for frame, line in walk_tb(error.__traceback__) if is_authors(frame.f_code.co_filename)]


def authors_places(error: BaseException) -> list[str]:
    """All places in authors' code that an error came through, `file:line function`, innermost last."""
    return [_call(frame, line) for frame, line in authors_calls(error)]


def authors_function(error: BaseException) -> tuple[str, str] | None:
    """The innermost function of authors' code that an error came through, if any, in two forms.

    `module function`, which does not change with lines and folders, and its place, `file:line function`.
    """
    came_through = authors_calls(error)
    if not came_through:
        return None
    frame, line = came_through[-1]
    return f"{frame.f_globals.get('__name__', '')} {frame.f_code.co_qualname}", _call(frame, line)


def places(error: BaseException, limit: int) -> list[str]:
    """The last places that an error came through, `file:line function`, innermost last.

    Where authors' code is among them, they begin with it: what of ours called it helps nobody, and what it called comes
    after it, as far as there is room. The innermost place is always there.
    """
    came_through = list(walk_tb(error.__traceback__))
    authors = [at for at, (frame, _) in enumerate(came_through) if is_authors(frame.f_code.co_filename)]
    if authors:
        kept = sorted({*authors, len(came_through) - 1})[-limit:]
        others = [at for at in range(kept[0], len(came_through)) if at not in kept]
        kept += others[::-1][: limit - len(kept)]
        came_through = [came_through[at] for at in sorted(kept)]
    return [_call(frame, line) for frame, line in came_through[-limit:]]


def _call(frame: FrameType, line: int) -> str:
    return f"{place(frame.f_code.co_filename, line)} {frame.f_code.co_name}"
