"""The worker's results as tables."""

from collections.abc import Mapping
from statistics import median
from typing import Final

from bench.tables import Sheet
from bench.targets import sheet
from bench.work.competitors import ours_beside
from bench.work.results import Results, Work, cpu, peak, rate, redis
from bench.work.targets import targets

#: Processor time of the worker, then of Redis, and requests that Redis has read, per event.
COSTS: Final = ("µs each", "Redis, µs each", "round trips each")

#: Round trips that our own looking makes up for.
_LOOKING: Final = 0.02


def sheets(results: Results) -> list[Sheet]:
    """All tables."""
    found = [*_fields(results), _processes(results), _end_to_end(results), sheet(targets(results))]
    return [each for each in found if each.rows]


def _fields(results: Results) -> list[Sheet]:
    """A table for each latency of the API, the one that everybody was measured with first."""
    found = [_field(results, results.latency * 1_000, results.throughput)]
    return found + [_field(results, float(latency), rounds) for latency, rounds in results.latencies.items()]


def _field(results: Results, latency: float, found: Mapping[str, list[Work]]) -> Sheet:
    ranked = sorted(found.items(), key=lambda item: -rate(item[1]))
    rows = [[results.titles[name], *rates(rounds), _ratio(found, name), *costs(rounds)] for name, rounds in ranked]
    columns = ["competitor", "events/s", "rounds", "credhook / it", *COSTS, "MiB"]
    return Sheet(f"Events handled, one process, an API that answers after {latency:g} ms", columns, rows)


def _ratio(found: Mapping[str, list[Work]], name: str) -> str:
    """To ours with as many at once."""
    ours = found.get(ours_beside(name))
    return f"{rate(ours) / rate(found[name]):.2f}" if ours else ""


def _processes(results: Results) -> Sheet:
    rows = [[count, *rates(rounds), *costs(rounds)] for count, rounds in results.processes.items()]
    columns = ["processes", "events/s", "rounds", *COSTS, "MiB together"]
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


def rates(rounds: list[Work]) -> tuple[str, str]:
    rates = [one.rate for one in rounds]
    return f"{rate(rounds):,.0f}", f"{min(rates):,.0f} to {max(rates):,.0f}"


def costs(rounds: list[Work]) -> tuple[str, str, str, str]:
    """Where there is no Redis, what remains of its figures is our own looking."""
    own, memory = cpu(rounds), peak(rounds)
    trips = median(one.trips for one in rounds)
    on_redis = trips >= _LOOKING
    return (
        f"{own:,.0f}" if own else "",
        f"{redis(rounds):,.0f}" if on_redis else "",
        f"{trips:.2f}" if on_redis else "",
        f"{memory:.0f}" if memory else "",
    )
