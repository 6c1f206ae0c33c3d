"""Which of the worker's targets are met."""

import math
from pathlib import Path

from bench.work.results import EndToEnd, Results, Work
from bench.work.targets import targets


def results(*, trips: float = 1.0, peak: float | None = 100.0, **rates: float) -> Results:
    measured = {
        name.replace("_", "-"): [Work(rate, 100, True, 700.0, peak, trips, 30.0)] for name, rate in rates.items()
    }
    return Results({}, {name: name for name in measured}, 0.05, measured)


def met(measured: Results) -> dict[str, bool]:
    return {target.what: target.met for target in targets(measured)}


def test_each_ratio_has_its_own_bound() -> None:
    assert met(results(credhook=1_000.0, bare_httpx=1_400.0, rq_simple=18.0, dramatiq=800.0, arq=900.0)) == {
        "credhook / bare-httpx": False,
        "credhook / the best peer, arq": False,
        "credhook / rq-simple": True,
        "round trips to Redis per event at full load": True,
        "most memory of `credhook worker` with 100 events under way, MiB": True,
    }


def test_round_trips_and_memory_have_bounds_where_the_system_tells() -> None:
    assert met(results(credhook=1_000.0, trips=3.1, peak=151.0)) == {
        "round trips to Redis per event at full load": False,
        "most memory of `credhook worker` with 100 events under way, MiB": False,
    }
    assert met(results(credhook=1_000.0, peak=None)) == {"round trips to Redis per event at full load": True}


def test_events_that_are_never_handled_count_as_infinitely_late(tmp_path: Path) -> None:
    measured = results()
    measured.end_to_end = [EndToEnd(300.0, 1.0, math.inf, 0.1, 100, 98)] * 2 + [
        EndToEnd(300.0, 1.0, 9.0, 0.1, 100, 100)
    ]
    measured.write(tmp_path / "work.json")
    kept = Results.read(tmp_path / "work.json")
    assert kept == measured
    assert met(kept) == {"p99 from delivery to handler at 300 a second, beyond the API, ms": False}
