"""Texts from outside, as a terminal may show them."""

import io
import sys

import pytest

from credhook.terminal import blocks, plain


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


@pytest.mark.parametrize(
    ("encoding", "values", "line"),
    [
        ("utf-8", [0, 1, 50, 100], "·▁▄█"),
        ("utf-8", [0, 0], "··"),
        ("utf-8", [1], "█"),
        ("utf-8", [], ""),
        ("latin-1", [0, 1, 50, 100], ".:+@"),
        ("ascii", [0, 1, 2], ".+@"),
    ],
)
def test_line_of_blocks_has_one_for_each_value(
    monkeypatch: pytest.MonkeyPatch, encoding: str, values: list[int], line: str
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert blocks(values) == line
