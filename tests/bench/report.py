"""The receiver's results as tables."""

from collections.abc import Sequence
from statistics import median

from bench.competitors import STRICT
from bench.results import Latency, Results, middle
from bench.tables import Sheet
from bench.targets import sheet, targets


def sheets(results: Results) -> list[Sheet]:
    """All tables."""
    found = [_throughput(results), _latency(results), _ledger(results), sheet(targets(results))]
    return [each for each in found if each.rows]


def _throughput(results: Results) -> Sheet:
    rows = []
    ours = results.rate(STRICT.name) if STRICT.name in results.throughput else None
    for name, rounds in sorted(results.throughput.items(), key=lambda item: -results.rate(item[0])):
        rates = [one.rate for one in rounds]
        cpu = [one.cpu for one in rounds if one.cpu is not None]
        peak = results.peak(name)
        rows.append(
            [
                results.titles[name],
                f"{median(rates):,.0f}",
                f"{min(rates):,.0f} to {max(rates):,.0f}",
                f"{ours / median(rates):.2f}" if ours else "",
                f"{median(cpu):.0f}" if cpu else "",
                f"{peak:.0f}" if peak else "",
            ]
        )
    columns = ["competitor", "deliveries/s", "rounds", "credhook / it", "µs each", "MiB"]
    return Sheet("As much as each takes; processor time and memory of its process", columns, rows)


def _latency(results: Results) -> Sheet:
    rows = []
    for name, loads in results.latency.items():
        for part, rounds in loads.items():
            rows.append(_latency_row(f"{results.titles[name]}, {float(part):.0%}", rounds))
    if results.same_rate:
        rows.append(_latency_row("bare Starlette at half of credhook's maximum", results.same_rate))
    columns = ["competitor, part of its maximum", "deliveries/s", "p50, ms", "p99, ms", "generator late, ms"]
    return Sheet("Latency at steady rates, counted from when a request was due", columns, rows)


def _latency_row(title: str, rounds: Sequence[Latency]) -> list[str]:
    p50, p99 = middle(rounds)
    late = median(one.late for one in rounds)
    return [title, f"{median(one.rate for one in rounds):,.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{late:.2f}"]


def _ledger(results: Results) -> Sheet:
    rows = [
        [f"{int(count):,}", f"{median(one.rate for one in rounds):,.0f}"] for count, rounds in results.ledger.items()
    ]
    return Sheet("As much as credhook (strict) takes, by the size of its ledger", ["records", "deliveries/s"], rows)
