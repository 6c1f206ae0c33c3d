"""Name places in code. Handler authors look for their own lines, so these come first."""

import os
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Final

#: The folder of our own code. All our modules are imported through it.
_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD_LIBRARY: Final = f"{Path(os.__file__).parent}{os.sep}"
#: Folders of installed packages.
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

#: The place of the author's function that runs now. Python reports some mistakes only after it, at a line of ours.
runs_now: ContextVar[str] = ContextVar("runs_now", default="")

#: Folders and files of installed packages that hold handlers: they are an author's code, too.
_loaded_from: set[str] = set()


def loaded_from(module: str) -> None:
    """Treat a module's whole package as its author's code from now on."""
    try:
        spec = find_spec(module.partition(".")[0])
    except ValueError:  # The module of that name has no file.
        return
    if spec is not None:
        folders = [f"{folder}{os.sep}" for folder in spec.submodule_search_locations or ()]
        _loaded_from.update(each for each in folders or [spec.origin or ""] if each and not each.startswith(_OURS))
        is_authors.cache_clear()


@cache
def is_authors(filename: str) -> bool:
    """Return True if the file is a handler author's: not ours, not Python's, and not a library's."""
    if filename.startswith("<"):  # `<frozen importlib._bootstrap>`, `<string>`.
        return False
    if any(filename.startswith(place) for place in _loaded_from):
        return True
    return not (filename.startswith((_OURS, _STANDARD_LIBRARY)) or any(part in filename for part in _INSTALLED))


def place(filename: str, line: int) -> str:
    """Return `folder/file:line`."""
    return f"{'/'.join(filename.split('/')[-2:])}:{line}"


def beginning(code: CodeType) -> str:
    """Return the place where a function begins."""
    return place(code.co_filename, code.co_firstlineno)


def authors_frames(error: BaseException) -> list[str]:
    """Return all places in authors' code that an error came through, with paths that editors open, innermost last."""
    frames = [(frame.f_code.co_filename, line, f" {frame.f_code.co_name}") for frame, line in _authors_calls(error)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 0, ""))
    return [f"{path.removeprefix(f'{Path.cwd()}{os.sep}')}:{line}{function}" for path, line, function in frames]


def authors_function(error: BaseException) -> tuple[str, str] | None:
    """Return the innermost function of authors' code that an error came through, if any, in two forms.

    The first is `module function`, which does not change with lines and folders. The second is `file:line function`.
    """
    came_through = _authors_calls(error)
    if not came_through:
        return None
    frame, line = came_through[-1]
    return f"{frame.f_globals.get('__name__', '')} {frame.f_code.co_qualname}", _call(frame, line)


def places(error: BaseException, limit: int) -> list[str]:
    """Return the last places that an error came through: `file:line function`, innermost last.

    If authors' code is among them, begin there, and fill up with the places below it. Always keep the innermost place.
    """
    came_through = list(walk_tb(error.__traceback__))
    authors = [at for at, (frame, _) in enumerate(came_through) if is_authors(frame.f_code.co_filename)]
    if authors:
        kept = sorted({*authors, len(came_through) - 1})[-limit:]
        others = [at for at in range(kept[0], len(came_through)) if at not in kept]
        kept += others[::-1][: limit - len(kept)]
        came_through = [came_through[at] for at in sorted(kept)]
    return [_call(frame, line) for frame, line in came_through[-limit:]]


def _authors_calls(error: BaseException) -> list[tuple[FrameType, int]]:
    return [(frame, line) for frame, line in walk_tb(error.__traceback__) if is_authors(frame.f_code.co_filename)]


def _call(frame: FrameType, line: int) -> str:
    return f"{place(frame.f_code.co_filename, line)} {frame.f_code.co_name}"
