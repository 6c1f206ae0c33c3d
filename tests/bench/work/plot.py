"""Results as a picture: `python -m bench.work.plot RESULTS PICTURE`, in an environment that has matplotlib."""

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt  # type: ignore[import-not-found]  # It is not among our requirements.
from bench.plot import label_rounds
from bench.work.results import Results, rate


def draw(results: Results, picture: Path) -> None:
    """Draw the competitors on the left, the fastest of them by the API's latency on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 6), width_ratios=(1, 1), layout="constrained")
    colours = dict(zip(results.titles, plt.get_cmap("tab20").colors, strict=False))
    _field(left, results, colours)
    _latencies(right, results, colours)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.suptitle(results.setting["machine"] + "; " + results.setting["cores"], fontsize=9)
    figure.savefig(picture, dpi=120)


def _field(axes: Any, results: Results, colours: dict[str, Any]) -> None:
    names = sorted(results.throughput, key=lambda name: rate(results.throughput[name]))
    rates = [rate(results.throughput[name]) for name in names]
    titles = [results.titles[name] for name in names]
    axes.barh(titles, rates, color=[colours[name] for name in names], alpha=0.8)
    label_rounds(axes, rates, [[one.rate for one in results.throughput[name]] for name in names])
    axes.set_title(f"Events handled per second, an API of {results.latency * 1_000:g} ms (marks: rounds)")


def _latencies(axes: Any, results: Results, colours: dict[str, Any]) -> None:
    fields = {float(latency): found for latency, found in results.latencies.items()}
    fields[results.latency * 1_000] = results.throughput
    latencies = sorted(fields)
    names = [name for name in results.titles if all(name in fields[latency] for latency in latencies)]
    if len(latencies) > 1:
        width = 0.8 / len(names)
        for place, name in enumerate(names):
            rows = [number + (place - (len(names) - 1) / 2) * width for number in range(len(latencies))]
            rates = [rate(fields[latency][name]) for latency in latencies]
            bars = axes.bar(rows, rates, 0.95 * width, color=colours[name], alpha=0.8, label=results.titles[name])
            axes.bar_label(bars, [f"{each:,.0f}" for each in rates], padding=3, fontsize=7, rotation=90)
        axes.margins(y=0.15)
        axes.set_xticks(range(len(latencies)), [f"{latency:g} ms" for latency in latencies])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("Events handled per second, by the API's latency")


if __name__ == "__main__":
    draw(Results.read(Path(sys.argv[1])), Path(sys.argv[2]))
