"""Charts of samples over time, one below the other, as an SVG that any browser shows."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

#: Pixels of the page and of each chart, and the colours of the lines.
_WIDTH, _LEFT, _HEIGHT, _ROW = 960, 70, 180, 250
_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")

#: A name for each line, and its values.
Lines = Mapping[str, Sequence[float]]


def svg(title: str, minutes: Sequence[float], charts: Mapping[str, Lines]) -> str:
    """Return a page with a chart for each title in `charts`. All charts share the time, and begin at zero."""
    rows = [_chart(40 + number * _ROW, minutes, name, lines) for number, (name, lines) in enumerate(charts.items())]
    size = f"{_WIDTH} {40 + len(rows) * _ROW}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12">'
    return f'{head}<rect width="100%" height="100%" fill="white"/>{_text(_LEFT, 24, title)}{"".join(rows)}</svg>\n'


def _text(x: float, y: float, text: str, colour: str = "black", anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


def _chart(top: int, minutes: Sequence[float], title: str, lines: Lines) -> str:
    most, bottom = max(map(max, lines.values())) * 1.1 or 1.0, top + 20 + _HEIGHT
    across = (_WIDTH - _LEFT - 20) / (minutes[-1] or 1.0)
    drawn = [_text(_LEFT, top + 12, title)]
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        y, x = bottom - part * _HEIGHT, _LEFT + part * minutes[-1] * across
        drawn.append(f'<path d="M{_LEFT} {y:.0f}H{_WIDTH - 20}" stroke="#ddd"/>')
        drawn.append(_text(_LEFT - 6, y + 4, f"{part * most:.4g}", anchor="end"))
        drawn.append(_text(x, bottom + 16, f"{part * minutes[-1]:.3g} min", anchor=anchor))
    for number, (name, values) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{_LEFT + at * across:.1f},{bottom - value / most * _HEIGHT:.1f}"
            for at, value in zip(minutes, values, strict=True)
        )
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        drawn.append(_text(_LEFT + 220 + 180 * number, top + 12, name, colour))
    return "".join(drawn)
