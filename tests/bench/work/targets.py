"""What the worker is to reach, and whether it has."""

from collections.abc import Sequence
from statistics import median

from bench.targets import Target
from bench.work.competitors import LIMIT, OURS, PEERS, RQ_SIMPLE
from bench.work.results import EndToEnd, Results, peak, rate

#: Milliseconds beyond the API's own that 99 of 100 events may take from delivery to handler.
_MOST_P99 = 50

#: Round trips to Redis that an event may cost.
_MOST_TRIPS = 3

#: MiB with all slots in use.
_MOST_MEMORY = 150


def targets(results: Results) -> list[Target]:
    """All whose figures were measured."""
    found: list[Target] = []
    ours = results.throughput.get(OURS.name)
    if ours:
        rates = {name: rate(rounds) for name, rounds in results.throughput.items()}
        peers = [peer.name for peer in PEERS if peer.name in rates]
        if LIMIT.name in rates:
            found.append(_ratio(results, rates, LIMIT.name, 0.75))
        if peers:
            found.append(_ratio(results, rates, max(peers, key=rates.__getitem__), 1.2, "the best peer, "))
        if RQ_SIMPLE.name in rates:
            found.append(_ratio(results, rates, RQ_SIMPLE.name, 50))
        trips = median(one.trips for one in ours)
        found.append(_at_most("round trips to Redis per event at full load", trips, _MOST_TRIPS, "{:.2f}"))
        memory = peak(ours)
        if memory is not None:
            slots = f"most memory of `credhook worker` with {OURS.slots} events under way, MiB"
            found.append(_at_most(slots, memory, _MOST_MEMORY, "{:.0f}"))
    if results.end_to_end:
        found.append(_end_to_end(results.end_to_end))
    return found


def _ratio(results: Results, rates: dict[str, float], against: str, least: float, who: str = "") -> Target:
    ratio = rates[OURS.name] / rates[against]
    what = f"{results.titles[OURS.name]} / {who}{results.titles[against]}"
    return Target(what, f"≥ {least:g}", f"{ratio:.2f}", ratio >= least)


def _at_most(what: str, reached: float, most: float, form: str) -> Target:
    return Target(what, f"≤ {most:g}", form.format(reached), reached <= most)


def _end_to_end(rounds: Sequence[EndToEnd]) -> Target:
    what = f"p99 from delivery to handler at {rounds[0].rate:g} a second, beyond the API, ms"
    return _at_most(what, median(one.p99 for one in rounds), _MOST_P99, "{:.1f}")
