"""What was measured, as it is kept in a file. Standard library only: the plot reads it in an environment of its own."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker gets done.

    Attributes:
        rate: events per second, from the first one's request until nothing is left to do, or the time is up.
        events: how many were fetched, each once.
        whole: whether that was all there were; if not, its time was up.
        cpu: microseconds of processor time per event, in all its processes; None where the system does not tell.
        peak: the most memory that they ever had, in MiB; None where the system does not tell.
        trips: its round trips to Redis, per event.
        redis: microseconds of Redis's own processor time per event.
        kept: bytes of Redis's memory that remain of an event which is settled; None if not all were.
    """

    rate: float
    events: int
    whole: bool
    cpu: float | None
    peak: float | None
    trips: float
    redis: float
    kept: float | None


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """How long it takes from when a delivery was due until its handler was called, beyond the API's own time.

    Attributes:
        rate: deliveries per second.
        p50: median, in milliseconds; infinite if half of the events were not handled in time.
        p99: 99th percentile, likewise.
        late: how late the generator itself was, 99th percentile, in milliseconds.
        deliveries: how many were acknowledged.
        handled: how many of them were handled before waiting was given up.
    """

    rate: float
    p50: float
    p99: float
    late: float
    deliveries: int
    handled: int


@dataclass(slots=True)
class Results:
    """Everything, one entry per round.

    Attributes:
        setting: what it was measured on, and how, for people.
        titles: the competitors, by name.
        latency: seconds after which the API answers, but for `latencies`.
        throughput: by competitor.
        latencies: by the API's latency in milliseconds, then by competitor.
        processes: of credhook, by the number of its processes, on all cores.
        end_to_end: of credhook.
    """

    setting: dict[str, str]
    titles: dict[str, str]
    latency: float
    throughput: dict[str, list[Work]] = field(default_factory=dict)
    latencies: dict[str, dict[str, list[Work]]] = field(default_factory=dict)
    processes: dict[str, list[Work]] = field(default_factory=dict)
    end_to_end: list[EndToEnd] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Keep them."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Results":
        """What was kept."""
        kept: dict[str, Any] = json.loads(path.read_text())
        kept["throughput"] = _works(kept["throughput"])
        kept["latencies"] = {latency: _works(found) for latency, found in kept["latencies"].items()}
        kept["processes"] = _works(kept["processes"])
        kept["end_to_end"] = [EndToEnd(**one) for one in kept["end_to_end"]]
        return cls(**kept)


def rate(rounds: Sequence[Work]) -> float:
    """The median."""
    return median(one.rate for one in rounds)


def cpu(rounds: Sequence[Work]) -> float | None:
    """The median of the worker's processor time per event, in microseconds."""
    return middle(one.cpu for one in rounds)


def redis(rounds: Sequence[Work]) -> float:
    """The median of Redis's own, likewise."""
    return median(one.redis for one in rounds)


def middle(figures: Iterable[float | None]) -> float | None:
    """The median of those that are known."""
    known = [figure for figure in figures if figure is not None]
    return median(known) if known else None


def peak(rounds: Sequence[Work]) -> float | None:
    """The most memory, in MiB."""
    return max((one.peak for one in rounds if one.peak is not None), default=None)


def _works(kept: Mapping[str, Any]) -> dict[str, list[Work]]:
    return {key: [Work(**one) for one in rounds] for key, rounds in kept.items()}
