"""Which of the worker's targets are met."""

import math
from pathlib import Path

from bench.work.competitors import COMPETITORS
from bench.work.results import EndToEnd, Results, Work
from bench.work.targets import targets


def work(rate: float, *, cpu: float | None = 700.0, peak: float | None = 100.0, trips: float = 0.2) -> Work:
    return Work(rate, 100, True, cpu, peak, trips, redis=30.0, kept=400.0)


def results(**rounds: Work) -> Results:
    measured = {name.replace("_", "-"): [one] for name, one in rounds.items()}
    return Results({}, {name: name for name in COMPETITORS}, 0.05, measured)


def met(measured: Results) -> dict[str, bool]:
    return {target.what: target.met for target in targets(measured)}


def test_each_ratio_has_its_own_bound() -> None:
    ours = {"credhook": work(1_000.0), "credhook_400": work(890.0)}
    peers = {"bare_httpx": 1_400.0, "rq_simple": 18.0, "dramatiq": 500.0, "arq": 600.0, "arq_400": 500.0}
    found = met(results(**ours, **{name: work(rate) for name, rate in peers.items()}))
    assert {what: reached for what, reached in found.items() if " / " in what} == {
        "credhook / bare-httpx": False,
        "credhook / the best Python peer, arq": True,
        "credhook / rq-simple": True,
        "credhook-400 / the best Python peer, arq": False,
    }


def test_bullmq_is_judged_beside_as_many_at_once_at_each_latency_by_rate_and_by_cost() -> None:
    measured = results(
        credhook=work(900.0), bullmq=work(1_000.0, cpu=510.0), credhook_400=work(840.0), bullmq_400=work(1_000.0)
    )
    measured.latencies["0"] = {"credhook-400": [work(900.0, cpu=710.0)], "bullmq-400": [work(1_000.0, cpu=500.0)]}
    found = {what: reached for what, reached in met(measured).items() if "bullmq" in what}
    assert found == {
        "credhook / bullmq, an API of 50 ms": True,
        "processor time each, credhook / bullmq, an API of 50 ms": True,
        "credhook-400 / bullmq-400, an API of 50 ms": False,
        "processor time each, credhook-400 / bullmq-400, an API of 50 ms": True,
        "credhook-400 / bullmq-400, an API of 0 ms": True,
        "processor time each, credhook-400 / bullmq-400, an API of 0 ms": False,
    }


def test_round_trips_and_memory_have_bounds_where_the_system_tells() -> None:
    trips, memory = "round trips to Redis per event at full load", "most memory of `credhook worker`"
    assert met(results(credhook=work(1_000.0, trips=0.31, peak=151.0), credhook_400=work(1_000.0, peak=None))) == {
        f"{trips}, 100 at once": False,
        f"{memory}, 100 at once, MiB": False,
        f"{trips}, 400 at once": True,
    }


def test_processes_that_share_cores_are_compared_by_their_processor_time() -> None:
    measured = results()
    measured.processes = {"1": [work(1_800.0, cpu=500.0)], "4": [work(3_000.0, cpu=490.0)]}
    what = "events per second of processor time, four processes / one"
    assert met(measured) == {what: True}
    measured.processes["4"] = [work(3_000.0, cpu=510.0)]
    assert met(measured) == {what: False}


def test_events_that_are_never_handled_count_as_infinitely_late(tmp_path: Path) -> None:
    measured = results()
    measured.end_to_end = [EndToEnd(300.0, 1.0, math.inf, 0.1, 100, 98)] * 2 + [
        EndToEnd(300.0, 1.0, 9.0, 0.1, 100, 100)
    ]
    measured.write(tmp_path / "work.json")
    kept = Results.read(tmp_path / "work.json")
    assert kept == measured
    assert met(kept) == {"p99 from delivery to handler at 300 a second, beyond the API, ms": False}
