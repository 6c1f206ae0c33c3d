import pytest

from credhook.worker.commands.events.command import fitted, folded_lines, plain


@pytest.mark.parametrize(
    ("natural", "room", "widths"),
    [
        ([10, 30, 20], None, [10, 30, 20]),
        ([10, 30, 20], 64, [10, 30, 20]),
        ([10, 30, 20], 44, [10, 15, 15]),
        ([10, 30, 20], 5, [8, 8, 8]),
    ],
)
def test_the_widest_columns_give_way(natural: list[int], room: int | None, widths: list[int]) -> None:
    assert fitted(natural, room) == widths


def test_a_cell_that_is_wider_than_its_column_goes_on_in_the_next_line_and_nothing_is_cut() -> None:
    assert list(folded_lines([("msg_0123", "done", ""), ("m", "dead", "a.b: E")], [4, 4, 3])) == [
        "msg_  done",
        "0123",
        "m     dead  a.b",
        "            : E",
    ]


def test_what_a_terminal_would_obey_is_shown_as_text() -> None:
    assert plain("ünit \x1b[2J\u202e") == "ünit \\x1b[2J\\u202e"
