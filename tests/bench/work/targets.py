"""What the worker is to reach, and whether it has."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final, TypeAlias

from bench.targets import Target, at_least, at_most
from bench.work.competitors import (
    BULLMQ,
    BULLMQ_CROWDED,
    COMPETITORS,
    LIMIT,
    OURS,
    OURS_CROWDED,
    PEERS,
    RQ_SIMPLE,
    ours_beside,
)
from bench.work.results import EndToEnd, Results, Work, cpu, peak, rate

#: What it takes of BullMQ's rate at least, and of its processor time at most.
_BULLMQ: Final = 0.85
_BULLMQ_COST: Final = 1.4

#: Milliseconds beyond the API's own that 99 of 100 events may take from delivery to handler.
_MOST_P99: Final = 4.0

#: Round trips to Redis that an event may cost.
_MOST_TRIPS: Final = 0.3

#: MiB with all slots in use.
_MOST_MEMORY: Final = 150

Field: TypeAlias = Mapping[str, Sequence[Work]]


def targets(results: Results) -> list[Target]:
    """All whose figures were measured."""
    found = [target for latency, field in _fields(results) for target in _beside_bullmq(results, latency, field)]
    for ours in (OURS.name, OURS_CROWDED.name):
        if ours in results.throughput:
            found += [*_beside_python(results, ours), *_costs(results, ours)]
    if {"1", "4"} <= results.processes.keys():
        one, four = (cpu(results.processes[count]) for count in ("1", "4"))
        if one and four:
            found.append(at_least("events per second of processor time, four processes / one", one / four, 1.0))
    if results.end_to_end:
        found.append(_end_to_end(results.end_to_end))
    return found


def _fields(results: Results) -> Iterator[tuple[float, Field]]:
    """What was measured beside each other, by the API's latency in milliseconds."""
    yield results.latency * 1_000, results.throughput
    yield from ((float(latency), field) for latency, field in results.latencies.items())


def _beside_bullmq(results: Results, latency: float, field: Field) -> Iterator[Target]:
    for name in (BULLMQ.name, BULLMQ_CROWDED.name):
        ours = ours_beside(name)
        if {ours, name} <= field.keys():
            beside = f"{results.titles[ours]} / {results.titles[name]}, an API of {latency:g} ms"
            yield at_least(beside, rate(field[ours]) / rate(field[name]), _BULLMQ)
            our_cost, its_cost = cpu(field[ours]), cpu(field[name])
            if our_cost and its_cost:
                yield at_most(f"processor time each, {beside}", our_cost / its_cost, _BULLMQ_COST)


def _beside_python(results: Results, ours: str) -> Iterator[Target]:
    """The limit, the best of the peers, and RQ, which our worker runs on."""
    rates = {name: rate(rounds) for name, rounds in results.throughput.items()}
    peers = [peer.name for peer in PEERS if peer.name in rates and peer.slots <= COMPETITORS[ours].slots]
    if ours == OURS.name and LIMIT.name in rates:
        yield at_least(_beside(results, ours, LIMIT.name), rates[ours] / rates[LIMIT.name], 0.75)
    if peers:
        best = max(peers, key=rates.__getitem__)
        yield at_least(_beside(results, ours, best, "the best Python peer, "), rates[ours] / rates[best], 1.5)
    if ours == OURS.name and RQ_SIMPLE.name in rates:
        yield at_least(_beside(results, ours, RQ_SIMPLE.name), rates[ours] / rates[RQ_SIMPLE.name], 50)


def _beside(results: Results, ours: str, name: str, who: str = "") -> str:
    return f"{results.titles[ours]} / {who}{results.titles[name]}"


def _costs(results: Results, ours: str) -> Iterator[Target]:
    rounds = results.throughput[ours]
    slots = f"{COMPETITORS[ours].slots} at once"
    yield at_most(
        f"round trips to Redis per event at full load, {slots}", median(one.trips for one in rounds), _MOST_TRIPS
    )
    memory = peak(rounds)
    if memory is not None:
        yield at_most(f"most memory of `credhook worker`, {slots}, MiB", memory, _MOST_MEMORY, "{:.0f}")


def _end_to_end(rounds: Sequence[EndToEnd]) -> Target:
    what = f"p99 from delivery to handler at {rounds[0].rate:g} a second, beyond the API, ms"
    return at_most(what, median(one.p99 for one in rounds), _MOST_P99)
