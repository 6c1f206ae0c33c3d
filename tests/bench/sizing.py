"""`python -m bench.sizing`: compute what a number of events a day needs from the measured cost of one event.

Events do not come evenly: the busiest hour is taken to be several times the mean, and what is built for it to have
that hour fill half of it, which is where the latencies of the other tables were judged.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from bench import tables
from bench.competitors import STRICT
from bench.environments import SCRATCH
from bench.results import Results
from bench.tables import Sheet
from bench.work import results as work
from bench.work.competitors import OURS
from rich.console import Console

#: What the table is printed for.
A_DAY: Final = (100_000, 1_000_000, 10_000_000, 100_000_000)

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


@click.command()
@click.option(
    "--out",
    default=SCRATCH / "results",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help="Folder with the results of bench.ingest and bench.work.  [default: .credhook/bench/results]",
)
def main(*, out: Path) -> None:
    """Print what an event costs and what a number of events a day needs; write it to sizing.md."""
    try:
        ingested, worked = Results.read(out / "ingest.json"), work.Results.read(out / "work.json")
        found = costs(ingested, worked)
    except FileNotFoundError as error:
        raise click.ClickException(f"{error.filename} is missing: run bench.ingest and bench.work first") from error
    except NotMeasured as error:
        raise click.ClickException(str(error)) from error
    sheets = [sheet(found)]
    tables.show(_setting(found), sheets, Console(width=None if sys.stdout.isatty() else 120))
    (out / "sizing.md").write_text(tables.markdown(_setting(found), sheets))


def _setting(found: Costs) -> dict[str, str]:
    return {
        "from": f"{found.deliveries:,.0f} deliveries/s for a receiver process, {found.events:,.0f} events/s for a "
        f"worker process, {found.redis:.0f} µs of Redis for both, {found.kept:,.0f} bytes of its memory for a settled "
        f"event; one Redis carries {1e6 / found.redis:,.0f} events/s at most"
    }


if __name__ == "__main__":
    main()
