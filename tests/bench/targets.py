"""What credhook is to reach, and whether it has."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from bench.competitors import BARE, FASTAPI_CELERY, FASTIFY_BULLMQ, STANDARD, STRICT
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


def sheet(found: Iterable[Target]) -> Sheet:
    """As a table."""
    rows = [[each.what, each.bound, each.reached, "yes" if each.met else "NO"] for each in found]
    return Sheet("Targets", ["figure", "to reach", "reached", "met"], rows)


def targets(results: Results) -> list[Target]:
    """All whose figures were measured."""
    found = [
        _ratio(results, against.name, least)
        for against, least in ((FASTIFY_BULLMQ, 1.0), (FASTAPI_CELERY, 10.0), (BARE, 0.55), (STANDARD, 0.85))
        if {STRICT.name, against.name} <= results.throughput.keys()
    ]
    if results.same_rate:
        p99, bare = middle(results.latency[STRICT.name][str(HALF)])[1], middle(results.same_rate)[1]
        times = p99 / bare
        found.append(Target("p99 at half load / bare Starlette's at the same rate", "≤ 3", f"{times:.2f}", times <= 3))
    if len(results.ledger) > 1:
        (few, small), *_, (many, large) = results.ledger.items()
        # Round by round, since a machine that is shared changes its speed more than the ledger does.
        part = median(one.rate / other.rate for one, other in zip(large, small, strict=True))
        what = f"with {int(many):,} ledger records / with {int(few):,}"
        found.append(Target(what, "≥ 0.90", f"{part:.2f}", part >= 0.9))
    peaks = [results.peak(name) for name in (STRICT.name, STANDARD.name) if name in results.throughput]
    peaks += [one.peak for each in results.ledger.values() for one in each]
    known = [peak for peak in peaks if peak is not None]
    if known:
        found.append(Target("most memory of the receiver, MiB", "≤ 90", f"{max(known):.0f}", max(known) <= 90))
    return found


def _ratio(results: Results, against: str, least: float) -> Target:
    ratio = results.rate(STRICT.name) / results.rate(against)
    what = f"{results.titles[STRICT.name]} / {results.titles[against]}"
    return Target(what, f"≥ {least:g}", f"{ratio:.2f}", ratio >= least)
