"""What credhook is to reach, and whether it has."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bench.competitors import (
    BARE,
    FASTIFY_BULLMQ,
    FASTIFY_BULLMQ_EVERYSEC,
    GROUPED,
    STANDARD,
    STRICT,
    Competitor,
)
from bench.results import HALF, Results, middle
from bench.tables import Sheet


@dataclass(frozen=True, slots=True)
class Target:
    """One figure that is to be reached.

    Attributes:
        what: it says.
        bound: that it must not cross, with its sign.
        reached: the figure.
        met: whether it is on the right side.
    """

    what: str
    bound: str
    reached: str
    met: bool


def at_least(what: str, reached: float, least: float, form: str = "{:.2f}") -> Target:
    """That a figure is to reach."""
    return Target(what, f"≥ {least:g}", form.format(reached), reached >= least)


def at_most(what: str, reached: float, most: float, form: str = "{:.2f}") -> Target:
    """That a figure is not to exceed."""
    return Target(what, f"≤ {most:g}", form.format(reached), reached <= most)


def sheet(found: Iterable[Target]) -> Sheet:
    """As a table."""
    rows = [[each.what, each.bound, each.reached, "yes" if each.met else "NO"] for each in found]
    return Sheet("Targets", ["figure", "to reach", "reached", "met"], rows)


#: Ours, against whom, and how many times as much it takes at least. Each peer beside what fsyncs as it does.
_RATIOS: Final[tuple[tuple[Competitor, Competitor, float], ...]] = (
    (STRICT, FASTIFY_BULLMQ, 1.25),
    (STANDARD, FASTIFY_BULLMQ_EVERYSEC, 1.15),
    (STRICT, BARE, 0.7),
    (STRICT, STANDARD, 0.85),
)


def targets(results: Results) -> list[Target]:
    """All whose figures were measured."""
    found = [
        _ratio(results, ours.name, against.name, least)
        for ours, against, least in _RATIOS
        if {ours.name, against.name} <= results.throughput.keys()
    ]
    if GROUPED.name in results.same_rate:
        p99 = middle(results.latency[STRICT.name][str(HALF)])[1]
        times = p99 / middle(results.same_rate[GROUPED.name])[1]
        what = f"p99 at half load / that of {results.titles[GROUPED.name]} at the same rate"
        found.append(at_most(what, times, 1.5))
    peaks = [results.peak(name) for name in (STRICT.name, STANDARD.name) if name in results.throughput]
    known = [peak for peak in peaks if peak is not None]
    if known:
        found.append(at_most("most memory of the receiver, MiB", max(known), 90, "{:.0f}"))
    return found


def _ratio(results: Results, ours: str, against: str, least: float) -> Target:
    what = f"{results.titles[ours]} / {results.titles[against]}"
    return at_least(what, results.rate(ours) / results.rate(against), least)
