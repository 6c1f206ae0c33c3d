"""`python -m bench.sizing`: compute what a number of events a day needs from the measured cost of one event.

Events do not come evenly. The busiest hour has several times the mean, and fills half of the processes.
"""

import json
import math
from pathlib import Path
from typing import Any, Final

import click
from bench import report
from bench.competitors import OURS, STRICT
from bench.report import Sheet, middle

A_DAY: Final = (100_000, 1_000_000, 10_000_000, 100_000_000)

#: The busiest hour as a multiple of the mean, the part of the processes that it fills, and the default of
#: CREDHOOK_RETENTION in days.
_PEAK, _LOAD, _DAYS = 4, 0.5, 7

#: Bytes a second that an idle receiver process adds to Redis's file, measured over 150 s (4229a05a).
_IDLE_RECEIVER: Final = 77
#: Bytes a second that an idle worker process adds, its share of the sweeper included (4229a05a).
_IDLE_WORKER: Final = 1_650


def sheet(received: dict[str, float], handled: dict[str, float]) -> Sheet:
    """Return the table for these costs of a delivery and of an event."""
    rows = []
    for a_day in A_DAY:
        a_second = a_day / 86_400 * _PEAK
        receivers, workers = [math.ceil(a_second / (each["rate"] * _LOAD)) for each in (received, handled)]
        idle = receivers * _IDLE_RECEIVER + workers * _IDLE_WORKER
        rows.append(
            [
                f"{a_day:,}",
                f"{a_second:,.0f}",
                str(receivers),
                str(workers),
                f"{a_second * (received['redis'] + handled['redis']) / 1e6:.1%}",
                _size(a_day * _DAYS * handled["kept"]),
                _size(a_day * (received["written"] + handled["written"]) + 86_400 * idle),
                f"{receivers * received['connections'] + workers * handled['connections']:,.0f}",
            ]
        )
    columns = ["events a day", "a second, at the peak", "receivers", "workers", "of Redis's core"]
    title = (
        f"Needs by events a day. The busiest hour has {_PEAK} times the mean and fills {_LOAD:.0%} of the processes. "
        f"Events are remembered for {_DAYS} days"
    )
    return Sheet(title, [*columns, "Redis's memory", "Redis's file grows a day", "Redis's connections"], rows)


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"


def _costs(path: Path, *keys: str) -> dict[str, float]:
    """Return the medians of a competitor's figures: its rounds are found by the keys."""
    if not path.exists():
        raise click.ClickException(f"{path} is missing: run bench.ingest and bench.work first")
    rounds: Any = json.loads(path.read_text())
    for key in keys:
        rounds = rounds.get(key, {})
    if not rounds or any(figure is None for one in rounds for figure in one.values()):
        raise click.ClickException(f"{path} has no figures of {keys[-1]}: measure it until all is settled")
    return {figure: middle(rounds, figure) for figure in rounds[0]}


@click.command()
@report.OUT
def main(*, out: Path) -> None:
    """Print what an event costs and what a number of events a day needs; write it to sizing.md."""
    received = _costs(out / "ingest.json", "throughput", STRICT.name)
    handled = _costs(out / "work.json", "rounds", "50", OURS.name)
    redis, written = (received[cost] + handled[cost] for cost in ("redis", "written"))
    most = 1e6 / redis
    end = most * _LOAD / _PEAK * 86_400
    setting = {
        "from": f"{received['rate']:,.0f} deliveries/s for a receiver process, {handled['rate']:,.0f} events/s for a "
        f"worker process; for both, {redis:.0f} µs of Redis and {written:,.0f} bytes of its file; "
        f"{handled['kept']:,.0f} bytes of its memory for a settled event",
        "idle": f"a receiver process writes {_IDLE_RECEIVER} bytes a second to Redis's file, a worker process "
        f"{_IDLE_WORKER:,}: {_size(86_400 * (_IDLE_RECEIVER + _IDLE_WORKER))} a day for the two (4229a05a)",
        "one Redis": f"{most:,.0f} events/s at most. {_LOAD:.0%} of its core at the peak are {end / 1e6:,.0f} million "
        f"events a day, but to remember them takes {_size(end * _DAYS * handled['kept'])}",
    }
    report.publish("sizing", out, setting, [sheet(received, handled)])


if __name__ == "__main__":
    main()
