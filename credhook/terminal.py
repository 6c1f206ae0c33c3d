"""Texts from outside on a terminal: no character is obeyed, and none stops a command."""

import io
import sys
from contextlib import suppress


def plain(text: str) -> str:
    """Escape characters that a terminal would obey or not show: they could forge a line or repaint the screen."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def accept_all_characters() -> None:
    """Let standard output escape characters that its encoding lacks. By default Python raises an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # If a pipe has taken the place of the stream's file, Python sets the option and then fails to seek.
        with suppress(OSError):
            sys.stdout.reconfigure(errors="backslashreplace")
