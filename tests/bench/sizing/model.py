"""What so many events a day need, from what one event was measured to cost.

Events do not come evenly: the busiest hour is taken to be several times the mean, and what is built for it to have
that hour fill half of it, which is where the latencies of the other tables were judged.
"""

import math
from dataclasses import dataclass
from typing import Final

from bench.competitors import STRICT
from bench.results import Results
from bench.tables import Sheet
from bench.work import results as work
from bench.work.competitors import OURS, OURS_CROWDED

#: What the table is printed for.
A_DAY: Final = (100_000, 1_000_000, 10_000_000, 100_000_000)

#: Latencies of the API, in milliseconds, with which a worker has enough to do for Redis to be judged by.
_BUSY: Final = ("0", "50")

#: Seconds.
_DAY: Final = 86_400


class NotMeasured(Exception):
    """A figure that is needed is not among the results; the message says which, and how to measure it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What an event costs.

    Attributes:
        deliveries: that one receiver process takes per second.
        events: that one worker process handles per second.
        receiver: microseconds of the receiver's processor time; None where the system does not tell.
        worker: of the worker's, likewise.
        redis: of Redis's own, for receiver and worker together.
        kept: bytes of Redis's memory until the event is forgotten.
    """

    deliveries: float
    events: float
    receiver: float | None
    worker: float | None
    redis: float
    kept: float


@dataclass(frozen=True, slots=True)
class Habits:
    """How events come, and with how much to spare.

    Attributes:
        peak: the busiest hour, as a multiple of the mean.
        load: part of what processes can do that it takes up.
        days: for which settled events are remembered: the default of CREDHOOK_RETENTION.
    """

    peak: float = 4.0
    load: float = 0.5
    days: float = 7.0


@dataclass(frozen=True, slots=True)
class Need:
    """What is needed.

    Attributes:
        a_second: events in each second of the busiest hour.
        receivers: processes.
        workers: processes, with as many events at once as were measured, and an API as fast.
        cores: that receivers and workers keep busy in that hour; None where the system does not tell.
        redis: of one core, the part that Redis keeps busy; beyond 1, one Redis is not enough.
        memory: bytes that Redis needs for what it remembers.
    """

    a_second: float
    receivers: int
    workers: int
    cores: float | None
    redis: float
    memory: float


def costs(ingest: Results, worked: work.Results) -> Costs:
    """What the benches have found, with every write fsynced.

    Raises:
        NotMeasured: see there.
    """
    received, handled = ingest.throughput.get(STRICT.name), worked.throughput.get(OURS.name)
    if not received or not handled:
        raise NotMeasured(f"no figures of {STRICT.name} and {OURS.name}: run bench.ingest and bench.work with both")
    kept = work.middle(one.kept for one in handled)
    if kept is None:
        raise NotMeasured(f"{OURS.name} was stopped before all was settled: run bench.work with a higher --limit")
    return Costs(
        deliveries=ingest.rate(STRICT.name),
        events=work.rate(handled),
        receiver=work.middle(one.cpu for one in received),
        worker=work.cpu(handled),
        redis=ingest.redis(STRICT.name) + work.redis(handled),
        kept=kept,
    )


def redis_of_both(ingest: Results, worked: work.Results) -> dict[str, float]:
    """Microseconds of Redis for a delivery and its event, by how many events the worker had at once and its API."""
    fields = {f"{worked.latency * 1_000:g}": worked.throughput, **worked.latencies}
    return {
        f"{worked.titles[ours]}, an API of {latency} ms": ingest.redis(STRICT.name) + work.redis(field[ours])
        for ours in (OURS.name, OURS_CROWDED.name)
        for latency, field in fields.items()
        if ours in field and latency in _BUSY
    }


def need(costs: Costs, a_day: float, habits: Habits = Habits()) -> Need:
    """What that many events a day need."""
    a_second = a_day / _DAY * habits.peak
    own = None if costs.receiver is None or costs.worker is None else costs.receiver + costs.worker
    return Need(
        a_second,
        receivers=math.ceil(a_second / (costs.deliveries * habits.load)),
        workers=math.ceil(a_second / (costs.events * habits.load)),
        cores=None if own is None else a_second * own / 1e6,
        redis=a_second * costs.redis / 1e6,
        memory=a_day * habits.days * costs.kept,
    )


def sheet(costs: Costs, habits: Habits = Habits()) -> Sheet:
    """As a table."""
    rows = []
    for a_day in A_DAY:
        found = need(costs, a_day, habits)
        rows.append(
            [
                f"{a_day:,}",
                f"{found.a_second:,.0f}",
                f"{found.receivers}",
                f"{found.workers}",
                f"{found.cores:.2f}" if found.cores is not None else "",
                f"{found.redis:.1%}",
                _size(found.memory),
            ]
        )
    columns = ["events a day", "a second, at the peak", "receivers", "workers", "cores busy", "of Redis's core"]
    title = (
        f"What so many events a day need, if the busiest hour has {habits.peak:g} times the mean and is to fill "
        f"{habits.load:.0%} of the processes, and events are remembered for {habits.days:g} days"
    )
    return Sheet(title, [*columns, "Redis's memory"], rows)


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
