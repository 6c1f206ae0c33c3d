"""The receiver's results as tables."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from bench.competitors import COMPETITORS, STANDARD, STRICT
from bench.results import Latency, Results, middle
from bench.tables import Sheet
from bench.targets import sheet, targets

#: Processor time of the server, then of Redis, and what is added to its append-only file, per delivery.
_COSTS: Final = ("µs each", "Redis, µs each", "written, bytes each")


def sheets(results: Results) -> list[Sheet]:
    """All tables."""
    found = [_throughput(results), _latency(results), sheet(targets(results))]
    return [each for each in found if each.rows]


def _throughput(results: Results) -> Sheet:
    rows = []
    for name, rounds in sorted(results.throughput.items(), key=lambda item: -results.rate(item[0])):
        rates = [one.rate for one in rounds]
        cpu = [one.cpu for one in rounds if one.cpu is not None]
        peak = results.peak(name)
        redis, written = results.redis(name), median(one.written for one in rounds)
        rows.append(
            [
                results.titles[name],
                f"{median(rates):,.0f}",
                f"{min(rates):,.0f} to {max(rates):,.0f}",
                _ratio(results, name),
                f"{median(cpu):.0f}" if cpu else "",
                *((f"{redis:.0f}", f"{written:.0f}") if written else ("", "")),
                f"{peak:.0f}" if peak else "",
            ]
        )
    columns = ["competitor", "deliveries/s", "rounds", "credhook / it", *_COSTS, "MiB"]
    return Sheet("As much as each takes; processor time and memory of its process", columns, rows)


def _ratio(results: Results, name: str) -> str:
    """Ours to it, each with a Redis that fsyncs as the other's does."""
    alike = STANDARD if COMPETITORS[name].appendfsync == STANDARD.appendfsync else STRICT
    return f"{results.rate(alike.name) / results.rate(name):.2f}" if alike.name in results.throughput else ""


def _latency(results: Results) -> Sheet:
    rows = []
    for name, loads in results.latency.items():
        for part, rounds in loads.items():
            rows.append(_latency_row(f"{results.titles[name]}, {float(part):.0%}", rounds))
    for name, rounds in results.same_rate.items():
        rows.append(_latency_row(f"{results.titles[name]}, at half of credhook's maximum", rounds))
    columns = ["competitor, part of its maximum", "deliveries/s", "p50, ms", "p99, ms", "generator late, ms"]
    return Sheet("Latency at steady rates, counted from when a request was due", columns, rows)


def _latency_row(title: str, rounds: Sequence[Latency]) -> list[str]:
    p50, p99 = middle(rounds)
    late = median(one.late for one in rounds)
    return [title, f"{median(one.rate for one in rounds):,.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{late:.2f}"]
