"""Print texts from outside: the terminal obeys none of their characters, and a narrow encoding stops no command."""

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Heights of a column from 0 on, and what stands for them if the encoding lacks blocks.
_BLOCKS: Final = "·▁▂▃▄▅▆▇█"
_PLAIN_BLOCKS: Final = ".:-=+*#%@"


def plain(text: str) -> str:
    """Escape characters that a terminal would obey or not show. They could forge a line or repaint the screen."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def prepare_streams() -> None:
    """Let standard output escape characters that its encoding lacks. By default Python raises an error.

    A stream that was closed before the start becomes the null device. Otherwise each use of it would fail, and the next
    socket would get its descriptor.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  It stays open.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def blocks(values: Sequence[int]) -> str:
    """Draw the values as a line of columns. The highest column is the largest value, and each value above 0 shows."""
    try:
        _BLOCKS.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        heights = _PLAIN_BLOCKS
    else:
        heights = _BLOCKS
    largest = max(values, default=0) or 1
    return "".join(heights[-(-value * (len(heights) - 1) // largest)] for value in values)
