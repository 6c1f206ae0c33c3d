"""What handler authors are shown of an error and operators are not: what it says, and where in their code it was."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from credhook.logs.places import authors_calls

#: Set by `credhook dev` for the processes that it starts, and by nobody else: an error's message may quote claims.
VARIABLE: Final = "CREDHOOK_DEV"


def in_development() -> bool:
    """Whether `credhook dev` has started this process."""
    return os.environ.get(VARIABLE) == "1"


def explained(error: BaseException) -> dict[str, object]:
    """An error's `message`, and its `frames` in the author's own code: `file:line function`, the innermost last."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  It is the author's class, and may be what is wrong.
        message = ""
    return {"message": message, "frames": list(_own_frames(error))}


def _own_frames(error: BaseException) -> Iterator[str]:
    for frame, line in authors_calls(error):
        yield f"{_from_here(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"
    if isinstance(error, SyntaxError) and error.filename:
        yield f"{_from_here(error.filename)}:{error.lineno}"


def _from_here(path: str) -> str:
    """Relative to where the command was started, as an editor finds it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
