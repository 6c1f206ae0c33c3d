"""What several processes have counted, brought together; and how it is written for Prometheus."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector


def gathered(folder: str) -> CollectorRegistry:
    """What several processes count into the folder."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]  # It ships no types here.
    return registry


def forget(place: int, folder: str) -> None:
    """Count what the process that has ended in that place had under way no longer."""
    for identity in (f"{place}", f"{place}-fork"):
        mark_process_dead(identity, folder)  # type: ignore[no-untyped-call]  # Likewise.


def exposition(registry: CollectorRegistry, figures: Iterable[Metric]) -> bytes:
    """The text that Prometheus reads: what was counted, and figures of the moment."""
    return generate_latest(_Together(registry, figures))


class _Together(Collector):
    """A registry's metrics, and others."""

    def __init__(self, registry: CollectorRegistry, others: Iterable[Metric]) -> None:
        self._counted = registry
        self._others = others

    def collect(self) -> Iterator[Metric]:
        yield from self._counted.collect()
        yield from self._others
