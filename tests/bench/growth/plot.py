"""One picture for each axis: `python -m bench.growth.plot RESULTS FOLDER`, in an environment that has matplotlib."""

import sys
from pathlib import Path
from typing import Any, Final

import matplotlib.pyplot as plt  # type: ignore[import-not-found]  # It is not among our requirements.
from bench.growth.results import Growth
from bench.work.results import Work, cpu, rate, redis

#: Of a bar; points are one apart.
_WIDTH: Final = 0.35


def draw(title: str, points: dict[str, list[Work]], picture: Path) -> None:
    """Draw events per second on the left, processor time per event, by powers of ten, on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    _bars(left, 0, [rate(rounds) for rounds in points.values()], "tab:blue", "worker")
    for place, rounds in enumerate(points.values()):
        left.plot([place] * len(rounds), [one.rate for one in rounds], "_", color="black", markersize=14)
    left.set_title("Events handled per second (marks: rounds)", fontsize=10)
    _bars(right, -_WIDTH / 2, [cpu(rounds) or 0.0 for rounds in points.values()], "tab:blue", "worker")
    _bars(right, _WIDTH / 2, [redis(rounds) for rounds in points.values()], "tab:red", "Redis")
    right.set_yscale("log")
    right.legend(frameon=False, fontsize=9, loc="upper left")
    right.set_title("Processor time of an event, µs", fontsize=10)
    for axes in (left, right):
        axes.set_xticks(range(len(points)), list(points))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.margins(y=0.2)
    figure.suptitle(f"By {title}", fontsize=11)
    figure.savefig(picture, dpi=110)


def _bars(axes: Any, shift: float, heights: list[float], colour: str, label: str) -> None:
    places = [place + shift for place in range(len(heights))]
    bars = axes.bar(places, heights, _WIDTH, color=colour, alpha=0.8, label=label)
    axes.bar_label(bars, [f"{height:,.0f}" for height in heights], padding=3, fontsize=9)


if __name__ == "__main__":
    results = Growth.read(Path(sys.argv[1]))
    for axis, found in results.axes.items():
        draw(results.titles[axis], found, Path(sys.argv[2]) / f"growth-{axis}.png")
