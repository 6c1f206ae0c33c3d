"""Small plots, as SVG without a style of its own. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

WIDTH: Final = 240
HEIGHT: Final = 44


class Point(NamedTuple):
    """What was so at a time, in seconds; None where that is not known."""

    at: float
    value: float | None


class Plot(NamedTuple):
    """A line over a span of time, and the area below it, from 0 on; None for values of which none is known."""

    line: str
    area: str
    highest: float | None
    last: float | None


def plot(points: Sequence[Point], *, start: float, end: float, gap: float) -> Plot:
    """Draw points, in their order, between two times in seconds; those further apart than `gap` are not joined."""
    known = [(one.at, one.value) for one in points if one.value is not None and start <= one.at <= end]
    if not known:
        return Plot("", "", None, None)
    highest = max(value for _, value in known)
    runs: list[list[tuple[float, float]]] = []
    before = None
    for at, value in known:
        x = (at - start) / (end - start) * WIDTH
        y = HEIGHT - 1 - (value / highest * (HEIGHT - 4) if highest else 0)
        if before is None or at - before > gap:
            runs.append([])
        runs[-1].append((x, y))
        before = at
    line = " ".join(_path(run if len(run) > 1 else [run[0], (run[0][0] + 0.5, run[0][1])]) for run in runs)
    area = " ".join(f"{_path([(run[0][0], HEIGHT), *run, (run[-1][0], HEIGHT)])} Z" for run in runs)
    return Plot(line, area, highest, known[-1][1])


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
