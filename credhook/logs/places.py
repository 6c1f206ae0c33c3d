"""Name places in code. Handler authors look for their own lines, so these come first."""

import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any, Final, Protocol

#: The folder of our own code. All our modules are imported through it.
_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD_LIBRARY: Final = f"{Path(os.__file__).parent}{os.sep}"
#: Folders of installed packages.
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Running(Protocol):
    """The author's function that runs now."""

    #: Names of coroutines that the function has created but not awaited.
    dropped: tuple[str, ...]
    #: Each `Retry` and `GiveUp` that the function has created.
    decisions: tuple[Exception, ...]

    @property
    def at(self) -> str:
        """Return the place of the function. Python reports some mistakes only after its end, at a line of our code."""

    def fields(self) -> Mapping[str, Any]:
        """Return the fields of each log line that is written while the function runs."""


#: Python's warning about a dropped coroutine. It quotes only a name in the code.
NEVER_AWAITED: Final = r"coroutine '([A-Za-z_][\w.<>]*)' was never awaited"


def dropped_coroutine(warning: Warning | str) -> str | None:
    """Return the coroutine's name if the warning says that it was never awaited. Note it for the handler that runs."""
    dropped = re.fullmatch(NEVER_AWAITED, str(warning))
    if dropped and (running := runs_now.get()):
        running.dropped += (dropped[1],)
    return dropped and dropped[1]


def note_decision(decision: Exception) -> None:
    """Note a decision for the handler that runs now, so that a missing `raise` is noticed."""
    if running := runs_now.get():
        running.decisions += (decision,)


#: The author's function that runs now. Tasks and threads with a copy of its context share it.
runs_now: ContextVar[Running | None] = ContextVar("runs_now", default=None)

#: Folders and files of installed packages that hold handlers, and so are an author's code.
_loaded_from: set[str] = set()


def loaded_from(module: str) -> None:
    """Treat a module's whole package as its author's code from now on."""
    with suppress(ValueError):  # The module of that name has no file.
        if spec := find_spec(module.partition(".")[0]):
            folders = [f"{folder}{os.sep}" for folder in spec.submodule_search_locations or ()]
            _loaded_from.update(
                folder for folder in folders or [spec.origin or ""] if folder and not folder.startswith(_OURS)
            )
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


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors in an exception group and in the groups within it. Any other error is the only item."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for member in error.exceptions for leaf in leaves(member)]


def authors_frames(error: BaseException) -> list[str]:
    """Return all places in authors' code that an error came through, with paths that editors open, innermost last.

    A place that a recursion has passed many times is listed once, with the number.
    """
    frames = [(frame.f_code.co_filename, line, f" {frame.f_code.co_name}") for frame, line in _authors_calls(error)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 0, ""))
    return [
        f"{path.removeprefix(f'{Path.cwd()}{os.sep}')}:{line}{function}{f' ({times} times)' if times > 1 else ''}"
        for (path, line, function), times in Counter(frames).items()
    ]


def authors_function(error: BaseException) -> tuple[str, str] | None:
    """Return the innermost function of authors' code that an error came through, if any, in two forms.

    The first is `module function`, which does not change with lines and folders. The second is `file:line function`.
    Both forms name the function of each member of an exception group.
    """
    came_through = [calls[-1] for member in leaves(error) if (calls := _authors_calls(member))] or _authors_calls(
        error
    )[-1:]
    if not came_through:
        return None
    functions = {f"{frame.f_globals.get('__name__', '')} {frame.f_code.co_qualname}" for frame, _ in came_through}
    return ", ".join(sorted(functions)), ", ".join(dict.fromkeys(_call(*call) for call in came_through))


def places(error: BaseException, limit: int) -> list[str]:
    """Return the last places that an error came through: `file:line function`, innermost last.

    If authors' code is among them, only authors' places and the innermost place count. Each place is listed once.
    """
    calls = list(walk_tb(error.__traceback__))
    authors = _authors_calls(error)
    if authors:
        calls = authors if calls[-1:] == authors[-1:] else [*authors, *calls[-1:]]
    return list(dict.fromkeys(_call(*call) for call in calls))[-limit:]


def without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without our own calls, so that a failed test shows the author's."""
    if traceback is None:
        return None
    rest = without_ours(traceback.tb_next)
    if traceback.tb_frame.f_code.co_filename.startswith(_OURS):
        return rest
    return TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


def members(error: BaseException, limit: int) -> list[str]:
    """Return class and innermost place of the first errors in an exception group. Of any other error, return none."""
    if not isinstance(error, BaseExceptionGroup):
        return []
    names = [" ".join([type(leaf).__name__, *places(leaf, limit)[-1:]]) for leaf in leaves(error)]
    return list(dict.fromkeys(names))[:limit]


def _authors_calls(error: BaseException) -> list[tuple[FrameType, int]]:
    calls = [(frame, line) for frame, line in walk_tb(error.__traceback__) if is_authors(frame.f_code.co_filename)]
    # Python replaces a StopIteration that leaves a coroutine. The author's line is in its cause.
    return calls or (_authors_calls(error.__cause__) if error.__cause__ else [])


def _call(frame: FrameType, line: int) -> str:
    return f"{place(frame.f_code.co_filename, line)} {frame.f_code.co_name}"
