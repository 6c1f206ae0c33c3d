"""What was measured, as it is kept in a file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

#: Parts of its own maximum at which each competitor's latencies are measured.
LOADS: Final = (0.25, 0.5, 0.75)

#: The load of `Results.same_rate`.
HALF: Final = 0.5


@dataclass(frozen=True, slots=True)
class Throughput:
    """What a server takes at most.

    Attributes:
        rate: deliveries accepted per second.
        cpu: microseconds of processor time per delivery in the server's process; None where the system does not tell.
        peak: the most memory that the server ever had, in MiB; None where the system does not tell.
        redis: microseconds of Redis's own processor time per delivery.
        written: bytes that a delivery adds to Redis's append-only file.
    """

    rate: float
    cpu: float | None
    peak: float | None
    redis: float
    written: float


@dataclass(frozen=True, slots=True)
class Latency:
    """How long answers take at a steady rate.

    Attributes:
        rate: deliveries per second.
        p50: median, in milliseconds.
        p99: 99th percentile, in milliseconds.
        late: how late the generator itself was, 99th percentile, in milliseconds.
        peak: as in `Throughput`.
    """

    rate: float
    p50: float
    p99: float
    late: float
    peak: float | None


@dataclass(slots=True)
class Results:
    """Everything, one entry per round.

    Attributes:
        setting: what it was measured on, and how, for people.
        titles: the competitors, by name.
        throughput: by competitor.
        latency: by competitor, then by load as a key of JSON ("0.5").
        same_rate: the limits at half of what credhook (strict) takes at most, by competitor.
    """

    setting: dict[str, str]
    titles: dict[str, str]
    throughput: dict[str, list[Throughput]] = field(default_factory=dict)
    latency: dict[str, dict[str, list[Latency]]] = field(default_factory=dict)
    same_rate: dict[str, list[Latency]] = field(default_factory=dict)

    def rate(self, name: str) -> float:
        """The median of what a competitor takes."""
        return median(one.rate for one in self.throughput[name])

    def redis(self, name: str) -> float:
        """The median of Redis's own processor time per delivery, in microseconds."""
        return median(one.redis for one in self.throughput[name])

    def peak(self, name: str) -> float | None:
        """The most memory that a competitor ever had, in MiB."""
        peaks = [one.peak for one in self.throughput[name]]
        peaks += [one.peak for rounds in self.latency.get(name, {}).values() for one in rounds]
        return max((peak for peak in peaks if peak is not None), default=None)

    def write(self, path: Path) -> None:
        """Keep them."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Results":
        """What was kept."""
        kept: dict[str, Any] = json.loads(path.read_text())
        kept["throughput"] = {name: [Throughput(**one) for one in each] for name, each in kept["throughput"].items()}
        kept["latency"] = {
            name: {at: [Latency(**one) for one in each] for at, each in loads.items()}
            for name, loads in kept["latency"].items()
        }
        kept["same_rate"] = {name: [Latency(**one) for one in each] for name, each in kept["same_rate"].items()}
        return cls(**kept)


def middle(latencies: Sequence[Latency]) -> tuple[float, float]:
    """The medians of p50 and of p99 over the rounds, in milliseconds."""
    return median(one.p50 for one in latencies), median(one.p99 for one in latencies)
