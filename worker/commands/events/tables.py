"""Tables of events, as wide as the terminal. Long cells continue on the next line; nothing is cut.

A page may have twenty thousand lines. rich takes two milliseconds for each, this a hundredth of that.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

import click

from credhook.worker.commands.search.search import Counts

_GAP: Final = "  "
#: Characters that a column keeps, however narrow the terminal is.
_MIN_WIDTH: Final = 8


def print_counts(counts: Counts, *, as_json: bool) -> None:
    """Print how many events there are of each state and type."""
    rows = sorted(counts.items())
    if as_json:
        for (state, kind), number in rows:
            click.echo(json.dumps({"state": state, "type": kind, "events": number}))
        return
    total = str(sum(number for _, number in rows))
    cells = [(state, kind, str(number).rjust(len(total))) for (state, kind), number in rows]
    print_table(("state", "type", "events"), [*cells, ("", "", total)])


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. Control characters in a cell are escaped."""
    cells = [tuple(map(plain, row)) for row in rows]
    natural = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    widths = fitted(natural, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
    first, *others = lines([header, *cells], widths)
    click.secho(first, bold=True)
    if others:
        click.echo("\n".join(others))


def fitted(natural: Sequence[int], room: int | None) -> list[int]:
    """Return column widths that fit into `room`; the widest columns shrink first. Pure."""
    widths = list(natural)
    while room is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > room and max(widths) > _MIN_WIDTH:
        widths[widths.index(max(widths))] -= 1
    return widths


def lines(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a table: several for a row whose cells are wider than their column. Pure."""
    for row in rows:
        folded = [
            [cell[start : start + width] for start in range(0, len(cell) or 1, width)]
            for cell, width in zip(row, widths, strict=True)
        ]
        for parts in zip_longest(*folded, fillvalue=""):
            yield _GAP.join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()


def plain(text: str) -> str:
    """Escape characters that a terminal would obey. Pure."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
