"""Graphs of the last hour and the last day: shapes of an SVG that a template draws. The browser needs no script."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from credhook.store import HANDLER
from credhook.store.store import SyncStore
from credhook.store.traffic import DAY, HOUR, Column, read_columns

#: Minutes of each graph, and of each of its columns.
_SPANS: Final = ((HOUR, 1), (DAY, 30))
_TITLES: Final = ("Last hour", "Last day")
#: Outcomes that are stacked, from below.
_STACKED: Final = ("done", "failed", "given_up")
#: Units of the SVG.
WIDTH: Final = 600
HEIGHT: Final = 100


class Bar(NamedTuple):
    """A part of a column, in units of the SVG."""

    outcome: str
    x: float
    y: float
    width: float
    height: float


class Graph(NamedTuple):
    """A graph of what came, as a line, and of what became of it, as bars.

    Attributes:
        sums: outcome → number in the whole span.
        highest: the number at the graph's upper edge.
        arrived: path of the line; "" for a handler, whose runs do not arrive.
        open: path of the area of open events; "" without samples.
        most_open: the number at the upper edge of that area.
        oldest: the highest age in s of the oldest open event; None without samples.
        rows: what a table shows: each column with its start, without columns in which nothing happened.
    """

    title: str
    start: datetime
    sums: dict[str, int]
    highest: int
    bars: Sequence[Bar]
    arrived: str
    open: str
    most_open: int
    oldest: int | None
    rows: Sequence[tuple[datetime, Column]]


def graphs(store: SyncStore, *, name: str = "") -> list[Graph]:
    """Return the graphs of the last hour and the last day. `name`: as for `read_columns`."""
    spans = read_columns(store, store.clock(), _SPANS, name=name)
    outcomes = _STACKED if name.startswith(HANDLER) else ("arrived", *_STACKED)
    return [_graph(title, columns, outcomes) for title, columns in zip(_TITLES, spans, strict=True)]


def _graph(title: str, columns: Sequence[Column], outcomes: Sequence[str]) -> Graph:
    highest = max(1, *(max(column.arrived, column.done + column.failed + column.given_up) for column in columns))
    step = WIDTH / len(columns)
    bars = []
    for number, column in enumerate(columns):
        y = float(HEIGHT)
        for outcome in _STACKED:
            height = HEIGHT * getattr(column, outcome) / highest
            if height:
                y -= height
                bars.append(Bar(outcome, round(number * step, 2), round(y, 2), round(step, 2), round(height, 2)))
    samples = [column.open for column in columns if column.open is not None]
    most_open = max(samples, default=0)
    return Graph(
        title=title,
        start=_time_of(columns[0]),
        sums={name: sum(getattr(column, name) for column in columns) for name in outcomes},
        highest=highest,
        bars=bars,
        arrived="M0 " + _steps([column.arrived for column in columns], highest, step) if "arrived" in outcomes else "",
        open=f"M0 {HEIGHT} V" + _steps([column.open or 0 for column in columns], most_open or 1, step) + f" V{HEIGHT} Z"
        if samples
        else "",
        most_open=most_open,
        oldest=max((column.oldest for column in columns if column.oldest is not None), default=None),
        rows=[(_time_of(column), column) for column in columns[::-1] if any(column[1:])],
    )


def _steps(values: Sequence[int], highest: int, step: float) -> str:
    """Return the rest of a path that goes from the first value to the last, column by column."""
    heights = [round(HEIGHT * (1 - value / highest), 2) for value in values]
    return " V".join(f"{height:g} H{round((number + 1) * step, 2):g}" for number, height in enumerate(heights))


def _time_of(column: Column) -> datetime:
    return datetime.fromtimestamp(60 * column.start, UTC)
