"""The worker's results as tables."""

from statistics import median

from bench.tables import Sheet
from bench.targets import sheet
from bench.work.competitors import LIMIT, OURS
from bench.work.results import Results, Work, peak, rate
from bench.work.targets import targets


def sheets(results: Results) -> list[Sheet]:
    """All tables."""
    found = [_field(results), _latencies(results), _processes(results), _end_to_end(results), sheet(targets(results))]
    return [each for each in found if each.rows]


def _field(results: Results) -> Sheet:
    ours = rate(results.throughput[OURS.name]) if OURS.name in results.throughput else None
    ranked = sorted(results.throughput.items(), key=lambda item: -rate(item[1]))
    rows = [
        [results.titles[name], *_rates(rounds), f"{ours / rate(rounds):.2f}" if ours else "", *_costs(rounds)]
        for name, rounds in ranked
    ]
    columns = ["competitor", "events/s", "rounds", "credhook / it", "µs each", "MiB", "Redis round trips each"]
    title = f"Events handled, one process, an API that answers after {results.latency * 1_000:g} ms"
    return Sheet(title, columns, rows)


def _latencies(results: Results) -> Sheet:
    by_latency = {float(latency): found for latency, found in results.latencies.items()}
    if by_latency and {OURS.name, LIMIT.name} <= results.throughput.keys():
        by_latency[results.latency * 1_000] = results.throughput
    rows = []
    for latency, found in sorted(by_latency.items()):
        ours, limit = rate(found[OURS.name]), rate(found[LIMIT.name])
        rows.append([f"{latency:g} ms", f"{ours:,.0f}", f"{limit:,.0f}", f"{ours / limit:.2f}"])
    columns = ["API answers after", "credhook, events/s", "bare httpx", "credhook / it"]
    return Sheet("By the API's latency, one process", columns, rows)


def _processes(results: Results) -> Sheet:
    rows = [[count, *_rates(rounds), *_costs(rounds)] for count, rounds in results.processes.items()]
    columns = ["processes", "events/s", "rounds", "µs each", "MiB together", "Redis round trips each"]
    return Sheet("credhook by its number of processes, which share all cores with Redis and the API", columns, rows)


def _end_to_end(results: Results) -> Sheet:
    rounds = results.end_to_end
    if not rounds:
        return Sheet("", [], [])
    row = [
        f"{rounds[0].rate:g}",
        *(f"{median(figures):.1f}" for figures in zip(*((one.p50, one.p99, one.late) for one in rounds), strict=True)),
        f"{sum(one.handled for one in rounds):,} of {sum(one.deliveries for one in rounds):,}",
    ]
    columns = ["deliveries/s", "p50, ms", "p99, ms", "generator late, ms", "handled in time"]
    return Sheet("credhook from delivery to handler, beyond the API's own latency", columns, [row])


def _rates(rounds: list[Work]) -> tuple[str, str]:
    rates = [one.rate for one in rounds]
    return f"{rate(rounds):,.0f}", f"{min(rates):,.0f} to {max(rates):,.0f}"


def _costs(rounds: list[Work]) -> tuple[str, str, str]:
    cpu = [one.cpu for one in rounds if one.cpu is not None]
    memory = peak(rounds)
    trips = median(one.trips for one in rounds)
    return (
        f"{median(cpu):,.0f}" if cpu else "",
        f"{memory:.0f}" if memory else "",
        f"{trips:.1f}" if trips >= 0.05 else "",  # The limit has no Redis; what remains is our own looking.
    )
