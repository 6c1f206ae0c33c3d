"""One picture for each axis: `python -m bench.growth.plot RESULTS FOLDER`, in an environment that has matplotlib."""

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt  # type: ignore[import-not-found]  # It is not among our requirements.
from bench.growth.results import Growth
from bench.work.results import Work, cpu, rate, redis


def draw(title: str, points: dict[str, list[Work]], picture: Path) -> None:
    """Draw events per second on the left, processor time per event on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    _bars(left, list(points), [rate(rounds) for rounds in points.values()], "tab:blue")
    left.set_title("Events handled per second (marks: rounds)", fontsize=10)
    for place, rounds in enumerate(points.values()):
        left.plot([place] * len(rounds), [one.rate for one in rounds], "_", color="black", markersize=14)
    workers = [cpu(rounds) or 0.0 for rounds in points.values()]
    _bars(right, list(points), workers, "tab:blue", label="worker")
    _bars(right, list(points), [redis(rounds) for rounds in points.values()], "tab:red", label="Redis", bottom=workers)
    right.set_title("Processor time of an event, µs", fontsize=10)
    right.legend(frameon=False, fontsize=9, loc="upper left")
    figure.suptitle(f"By {title}", fontsize=11)
    figure.savefig(picture, dpi=110)


def _bars(axes: Any, names: list[str], heights: list[float], colour: str, **options: Any) -> None:
    bars = axes.bar(names, heights, 0.5, color=colour, alpha=0.8, **options)
    axes.bar_label(bars, [f"{height:,.0f}" for height in heights], label_type="center", fontsize=9)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(y=0.25)


if __name__ == "__main__":
    results = Growth.read(Path(sys.argv[1]))
    for axis, found in results.axes.items():
        draw(results.titles[axis], found, Path(sys.argv[2]) / f"growth-{axis}.png")
