"""Print texts from outside: the terminal obeys none of their characters, and a narrow encoding stops no command."""

import io
import sys


def plain(text: str) -> str:
    """Escape characters that a terminal would obey or not show. They could forge a line or repaint the screen."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def accept_all_characters() -> None:
    """Let standard output escape characters that its encoding lacks. By default Python raises an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
