"""Texts from outside, as a terminal may show them."""

import pytest

from credhook.terminal import plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zoë ☃ 中", "Zoë ☃ 中"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[2J\x9b2J", r"\x1b[2J\x9b2J"),
        ("a\u202eb\u200bc\u2028d", r"a\u202eb\u200bc\u2028d"),
        ("\udcff", r"\udcff"),
        ("\U000e0041", r"\U000e0041"),
        ("", ""),
    ],
)
def test_characters_that_a_terminal_obeys_are_escaped(text: str, shown: str) -> None:
    assert plain(text) == shown
