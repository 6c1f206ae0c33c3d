"""Results as a picture: `python -m bench.plot RESULTS PICTURE`, in an environment that has matplotlib."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt  # type: ignore[import-not-found]  # It is not among our requirements.
from bench.results import Results, middle


def draw(results: Results, picture: Path) -> None:
    """Draw throughput on the left, latencies on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), width_ratios=(1, 1.2), layout="constrained")
    names = sorted(results.throughput, key=results.rate)
    colours = dict(zip(results.titles, plt.get_cmap("tab10").colors, strict=False))
    _throughput(left, results, names, colours)
    _latency(right, results, names[::-1], colours)
    figure.suptitle(results.setting["machine"] + "; " + results.setting["cores"], fontsize=9)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.savefig(picture, dpi=120)


def _throughput(axes: Any, results: Results, names: list[str], colours: dict[str, Any]) -> None:
    rates = [results.rate(name) for name in names]
    axes.barh([results.titles[name] for name in names], rates, color=[colours[name] for name in names], alpha=0.8)
    label_rounds(axes, rates, [[one.rate for one in results.throughput[name]] for name in names])
    axes.set_title("Deliveries accepted per second (marks: rounds)")


def label_rounds(axes: Any, rates: Sequence[float], rounds: Sequence[Sequence[float]]) -> None:
    """Mark the rounds of each bar, and write its rate beside the last of them."""
    for row, (rate, each) in enumerate(zip(rates, rounds, strict=True)):
        axes.plot(each, [row] * len(each), "|", color="black", markersize=12)
        axes.annotate(f"{rate:,.0f}", (max(each), row), (6, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, max(map(max, rounds)) * 1.18)
    axes.locator_params(axis="x", nbins=6)  # More of them run into each other.
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _latency(axes: Any, results: Results, names: list[str], colours: dict[str, Any]) -> None:
    for name in names:
        loads = results.latency.get(name)
        if loads:
            parts = [float(part) * 100 for part in loads]
            p50s, p99s = zip(*map(middle, loads.values()), strict=True)
            axes.plot(parts, p99s, "o-", color=colours[name], label=results.titles[name])
            axes.plot(parts, p50s, "o--", color=colours[name], alpha=0.6, markersize=4)
    axes.set_yscale("log")
    axes.set_xticks([25, 50, 75], ["25 %", "50 %", "75 %"])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(axis="y", which="both", alpha=0.25)
    axes.set_xlabel("load, of each one's own maximum")
    axes.set_title("Latency in ms: p99 (solid), p50 (dashed)")


if __name__ == "__main__":
    draw(Results.read(Path(sys.argv[1])), Path(sys.argv[2]))
