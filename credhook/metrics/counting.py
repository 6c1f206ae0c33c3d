"""Counters, histograms and gauges that cost next to nothing where events pass: counts come together in memory first.

Written at once, each would cost 3 to 5 microseconds where several processes count together, measured: of the 50 that a
delivery takes, one is too many. `flush` writes down what has come together, some times a second and before a scrape of
this process. A process that is killed takes the counts of the last part of a second with it.
"""

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics, values
from prometheus_client.metrics import MetricWrapperBase

from credhook.metrics.places import FOLDER, PLACE, identity

#: Seconds between two times that a process writes down what it has counted.
FLUSH_EACH: Final = 0.25

#: Values of a metric's labels, in their order.
Labels = tuple[str, ...]

# A gauge for every series, which several processes could not tell anyway.
disable_created_metrics()  # type: ignore[no-untyped-call]  # It ships no types here.
if FOLDER in os.environ and PLACE in os.environ:
    values.ValueClass = values.MultiProcessValue(identity(os.environ[PLACE]))  # type: ignore[no-untyped-call]  # Likewise.


class _Counted(ABC):
    """What is counted in memory, by any thread, until it is written down."""

    metric: MetricWrapperBase

    def __init__(self) -> None:
        self.lock = threading.Lock()
        ALL.append(self)

    @abstractmethod
    def write(self) -> None:
        """Write down what has come together."""

    @abstractmethod
    def clear(self) -> None:
        """Forget what has come together."""


ALL: Final[list[_Counted]] = []
#: Held while it is written down: nobody forks meanwhile, since the fork would find prometheus_client's own lock held by
#: a thread that it does not have.
_WRITING: Final = threading.Lock()


class Count(_Counted):
    """A counter."""

    metric: Counter

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = (), *, known: Iterable[Labels] = ()) -> None:
        """Begin at 0; `name` is without `_total`.

        `known`: values of the labels, where they are known: such series are there before the first count, which would
        otherwise be no increase to Prometheus.
        """
        super().__init__()
        self.metric = Counter(name, meaning, labels)
        self._pending: dict[Labels, float] = {}
        for one in known:
            self.metric.labels(*one)

    def add(self, *labels: str, by: float = 1) -> None:
        """Count one more, or so many."""
        with self.lock:
            self._pending[labels] = self._pending.get(labels, 0) + by

    def write(self) -> None:  # noqa: D102  As above.
        with self.lock:
            pending, self._pending = self._pending, {}
        for labels, number in pending.items():
            (self.metric.labels(*labels) if labels else self.metric).inc(number)

    def clear(self) -> None:  # noqa: D102  As above.
        self._pending = {}


class Distribution(_Counted):
    """A histogram."""

    metric: Histogram

    def __init__(
        self,
        name: str,
        meaning: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        known: Iterable[Labels] = (),
    ) -> None:
        """Begin with nothing observed; `buckets` are upper bounds, ascending, and `known` is as for `Count`."""
        super().__init__()
        self.metric = Histogram(name, meaning, labels, buckets=buckets)
        self._bounds = tuple(buckets)
        #: For each of the labels, how many were in each bucket; the last stands for the sum of what was observed.
        self._pending: dict[Labels, list[float]] = {}
        for one in known:
            self.metric.labels(*one)

    def observe(self, value: float, *labels: str) -> None:
        """Take in one value."""
        with self.lock:
            seen = self._pending.get(labels)
            if seen is None:
                seen = self._pending[labels] = [0.0] * (len(self._bounds) + 2)
            seen[bisect_left(self._bounds, value)] += 1
            seen[-1] += value

    def write(self) -> None:  # noqa: D102  As above.
        with self.lock:
            pending, self._pending = self._pending, {}
        for labels, (*numbers, total) in pending.items():
            series = self.metric.labels(*labels) if labels else self.metric
            # `observe` takes one value at a time; tests/unit/test_counting.py holds us to what it does.
            series._sum.inc(total)  # noqa: SLF001
            for bucket, number in zip(series._buckets, numbers, strict=True):  # noqa: SLF001
                if number:
                    bucket.inc(number)

    def clear(self) -> None:  # noqa: D102  As above.
        self._pending = {}


class Level(_Counted):
    """A gauge of what this process has; of several processes the sum, without those that have ended."""

    metric: Gauge

    def __init__(self, name: str, meaning: str) -> None:
        """Begin at 0."""
        super().__init__()
        self.metric = Gauge(name, meaning, multiprocess_mode="livesum")
        self._value = self._written = 0.0

    def add(self, by: float) -> None:
        """So many more, or fewer; from one thread alone."""
        self._value += by

    def set(self, value: float) -> None:
        """So many now."""
        self._value = value

    def write(self) -> None:  # noqa: D102  As above.
        if self._value != self._written:
            self._written = self._value
            self.metric.set(self._written)

    def clear(self) -> None:  # noqa: D102  As above.
        self._value = 0.0


def flush() -> None:
    """Write down all that has come together in this process."""
    with _WRITING:
        for one in ALL:
            one.write()


async def flush_on_and_on(sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Do so again and again, until cancelled."""
    while True:
        flush()
        await sleep(FLUSH_EACH)


def _begin_as_fork() -> None:
    """What the parent has not written yet is the parent's to write; its threads, which may hold locks, are not here."""
    _WRITING.release()
    for one in ALL:
        one.lock = threading.Lock()
        one.clear()


os.register_at_fork(before=_WRITING.acquire, after_in_parent=_WRITING.release, after_in_child=_begin_as_fork)
