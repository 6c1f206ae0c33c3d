"""Counters, histograms and gauges that threads, forks and several processes can share.

Several processes share files in one folder. prometheus_client names the files after the pid, so their number would
grow with every process that dies, and each scrape reads them all. Ours are named after the process's place among the
supervisor's children: the next process in that place counts on.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click
import prometheus_client.values
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from credhook.supervisor import FOLDER, PLACE

log = structlog.get_logger("credhook.metrics")

#: Set in a process whose counts cannot be read, because it has no admin listener, or no room. Counting takes 10 us of
#: the 200 us of an event.
unread: Final = threading.Event()

#: Bytes of each file: room for some 1,500 series. prometheus_client makes a file larger, but without its blocks.
_FILE_BYTES: Final = 262_144
#: Values of a metric's labels, in their order.
Labels = tuple[str, ...]


def identity(place: str, pid: Callable[[], int] = os.getpid) -> Callable[[], str]:
    """Return a function that names the files of this process.

    All forks of this process share a second name, one after the other. When the name changes, prometheus_client
    notices the fork, and reads the counts of the previous fork.
    """
    ours = pid()
    return lambda: place if pid() == ours else f"{place}-fork"


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Make the folder that several processes count in, for the length of the block.

    Raises:
        click.ClickException: no folder for temporary files can be written.
    """
    try:
        temporary = TemporaryDirectory(prefix="credhook-", ignore_cleanup_errors=True)
    except OSError as error:
        raise click.ClickException(
            "the counters of several processes need a folder for temporary files, and none can be written: set TMPDIR, "
            "mount a tmpfs at /tmp, or leave CREDHOOK_ADMIN out"
        ) from error
    with temporary as folder:
        held = os.open(folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_SH)  # systemd-tmpfiles leaves a locked folder alone.
        try:
            yield folder
        finally:
            os.close(held)


# Drop the gauges of creation times. They would be wrong with several processes.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # It ships no types here.


def count_in(folder: str, place: str) -> None:
    """Count in this folder, in files of this place. Metrics that exist already stay in memory.

    Without room for the files nothing is counted, because a write to a file without its blocks would end the process.
    """
    try:
        _allocate(Path(folder), place)
    except OSError as error:
        hint = "make room in TMPDIR and restart, or leave CREDHOOK_ADMIN out"
        log.warning("metrics_not_counted", error=type(error).__name__, hint=hint)
        unread.set()
        return
    os.environ[FOLDER] = folder  # prometheus_client reads it when a metric is made.
    values = prometheus_client.values
    values.ValueClass = values.MultiProcessValue(identity(place))  # type: ignore[no-untyped-call]  # It ships no types here.


def _allocate(folder: Path, place: str) -> None:
    """Give the files of this place and of its forks their blocks. A folder that was removed is made again."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (place, f"{place}-fork"):
        for kind in ("counter", "histogram", "gauge_livesum"):
            with (folder / f"{kind}_{name}.db").open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, _FILE_BYTES)


if FOLDER in os.environ and PLACE in os.environ:
    count_in(os.environ[FOLDER], os.environ[PLACE])

#: Held while a count is written, so that no thread forks meanwhile. In the child, prometheus_client's own locks would
#: stay locked for ever.
_WRITING: Final = threading.Lock()
os.register_at_fork(before=_WRITING.acquire, after_in_parent=_WRITING.release, after_in_child=_WRITING.release)


class Count:
    """A counter."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = (), *, initial: Iterable[Labels] = ()) -> None:
        """Start at 0; `name` is without `_total`.

        `initial`: label values whose series exist before the first count. Otherwise Prometheus sees no increase.
        """
        self.metric = Counter(name, meaning, labels)
        self._series = cache(self.metric.labels if labels else lambda: self.metric)
        for values in initial:
            self._series(*values)

    def add(self, *labels: str, by: float = 1) -> None:
        """Add to the count."""
        if unread.is_set():
            return
        with _WRITING:
            self._series(*labels).inc(by)


class Distribution:
    """A histogram."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> None:
        """Start empty. `buckets` are upper bounds, ascending."""
        self.metric = Histogram(name, meaning, labels, buckets=buckets)
        self._series = cache(self.metric.labels if labels else lambda: self.metric)

    def observe(self, value: float, *labels: str) -> None:
        """Observe one value."""
        if unread.is_set():
            return
        with _WRITING:
            self._series(*labels).observe(value)


class Level:
    """A gauge. With several processes it is the sum over the living ones."""

    def __init__(self, name: str, meaning: str) -> None:
        self.metric = Gauge(name, meaning, multiprocess_mode="livesum")

    def set(self, value: float) -> None:
        """Set the value."""
        if unread.is_set():
            return
        with _WRITING:
            self.metric.set(value)


def gathered(folder: str) -> CollectorRegistry:
    """Return a registry with the counts of all processes that share the folder."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]  # It ships no types here.
    return registry


def drop_gauges(folder: str, place: int) -> None:
    """Drop the gauges of the ended process in this place, and of its forks."""
    for name in (f"{place}", f"{place}-fork"):
        mark_process_dead(name, folder)  # type: ignore[no-untyped-call]  # It ships no types here.


def exposition(registry: CollectorRegistry, figures: Iterable[Metric], *, queue: str) -> bytes:
    """Return the text for Prometheus: the counted metrics and the current figures, with the queue as a label."""
    return prometheus_client.generate_latest(_Together(registry, figures, queue))


@dataclass
class _Together(Collector):
    registry: CollectorRegistry
    figures: Iterable[Metric]
    queue: str

    def collect(self) -> Iterator[Metric]:
        for metric in chain(self._counted(), self.figures):
            # A metric about another queue has this label already.
            labelled = [sample._replace(labels={"queue": self.queue, **sample.labels}) for sample in metric.samples]
            metric.samples = labelled
            yield metric

    def _counted(self) -> Iterator[Metric]:
        """Yield the counts, or none if a file of counts is damaged: the figures are still worth a scrape."""
        try:
            yield from list(self.registry.collect())
        except Exception as error:
            hint = "restart the process: another program has changed its files in TMPDIR"
            log.warning("counts_unreadable", exc_info=error, hint=hint)
