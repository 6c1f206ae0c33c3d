"""`python -m bench.work`: the worker beside its peers, on one machine, in one run.

Every competitor gets the same events, one process, one core, and a Redis of its own, configured alike. All fetch the
same details from the same stub of the API, over loopback and without TLS.
"""

import json
import math
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
from bench import competitors as who
from bench import generator, machine, report
from bench.competitors import BULLMQ, BULLMQ_CROWDED, HTTPX, OURS, OURS_CROWDED, RQ_SIMPLE, WORKERS, Competitor
from bench.deliveries import sign
from bench.environments import HERE, PROGRAMS, say
from bench.ingest import serving
from bench.machine import Meter, Process, RunFailed
from bench.report import Rounds, Sheet, middle
from redis import Redis

from credhook.sandbox.local.environment import free_port, local_redis

#: Seconds until a worker must have asked for the first event, and for filling a queue.
_START_SECONDS: Final = 60.0
_FILL_SECONDS: Final = 600.0

#: Seconds between two looks at the requests that the API has counted.
_LOOK: Final = 0.05

#: Seconds that handlers get after the last delivery was acknowledged.
_PATIENCE: Final = 10.0

#: Round trips per event that our own looks make up for, where a competitor has no Redis.
_LOOKING: Final = 0.02

_COSTS: Final = ("µs each", "Redis, µs each", "round trips each")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run.

    Attributes:
        rounds: competitors take turns, and a figure is the median of its rounds.
        events: in the queue at most.
        seconds: that a worker whose slots are never empty would be busy, at most.
        limit: seconds after which a slow worker is stopped.
        latency: seconds after which the API answers.
        patience: seconds until a worker that has fetched everything must have settled it.
        latencies: other latencies of the API.
        processes: numbers of processes of credhook.
        rate: deliveries per second, from delivery to handler.
        end_to_end_seconds: how long they are sent.
        warm_up: deliveries that are sent and handled before.
    """

    rounds: int = 3
    events: int = 40_000
    seconds: float = 10.0
    limit: float = 30.0
    latency: float = 0.05
    patience: float = 15.0
    latencies: tuple[float, ...] = (0.0, 0.5)
    processes: tuple[int, ...] = (1, 2, 4)
    rate: float = 300.0
    end_to_end_seconds: float = 20.0
    warm_up: int = 300

    def queue(self, slots: int) -> int:
        """Return how many events are queued: no more than could be handled if only the API were waited for."""
        return math.ceil(min(self.events, slots * self.seconds / self.latency)) if self.latency else self.events


_PLAN: Final = Plan()

#: Enough to see that everything works, too little for figures.
_SMALL: Final = Plan(
    rounds=1,
    events=200,
    seconds=1,
    limit=60,
    latencies=(0.0,),
    processes=(2,),
    rate=10,
    end_to_end_seconds=1,
    warm_up=10,
)


@dataclass(frozen=True, slots=True)
class Api:
    """The stub of the platform's API."""

    url: str

    def seen(self) -> dict[str, Any]:
        """Return the numbers of requests, of their resources and answers, and the seconds from first to last."""
        with urllib.request.urlopen(f"{self.url}/seen", timeout=10) as answer:
            counts: dict[str, Any] = json.loads(answer.read())
            return counts


@contextmanager
def answering(latency: float, folder: Path) -> Iterator[Api]:
    """Run the stub on a free port. It answers after `latency` seconds."""
    port = free_port()
    command = (sys.executable, PROGRAMS / "stub.py", str(port), str(latency))
    process = Process(command, {}, folder / "api.log", machine.LOAD)
    try:
        process.await_answer(port)
        yield Api(f"http://127.0.0.1:{port}")
    finally:
        process.stop()


@contextmanager
def working(
    competitor: Competitor,
    environment: Mapping[str, str],
    folder: Path,
    options: tuple[str, ...] = (),
    cores: frozenset[int] = machine.SERVER,
) -> Iterator[Process]:
    """Run a competitor's worker, with its log in `folder`."""
    worker = Process(competitor.command(*options), environment, folder / "worker.log", cores)
    try:
        yield worker
    finally:
        worker.stop()


def environment(competitor: Competitor, redis_url: str, api_url: str) -> dict[str, str]:
    return {
        "PYTHONPATH": str(HERE.parent),
        "REDIS_URL": redis_url,
        "RQ_REDIS_URL": redis_url,
        "API_URL": api_url,
        "SLOTS": str(competitor.slots),
        "CREDHOOK_API_URL": api_url,
        "CREDHOOK_TOKEN_URL": f"{api_url}/token",
        "CREDHOOK_CLIENT_ID": "bench",
        "CREDHOOK_CLIENT_SECRET": "bench",
        "CREDHOOK_CONCURRENCY": str(competitor.slots),
        **competitor.settings,
    }


def measure(competitor: Competitor, plan: Plan, folder: Path, processes: int = 0) -> dict[str, Any]:
    """Fill a competitor's queue in an empty folder, start its worker, and watch it until it is done or out of time.

    With `processes`, the worker has so many and shares all cores with Redis and the API.
    """
    events = plan.queue(competitor.slots * (processes or 1))
    options = ("--processes", str(processes)) if processes else ()
    try:
        with (
            local_redis(folder, options=machine.NO_REWRITES) as url,
            Redis.from_url(url) as redis,
            answering(plan.latency, folder) as api,
        ):
            memory_before = _memory(redis)
            told = environment(competitor, url, api.url) | {"EVENTS": str(events)}
            redis.config_set("appendfsync", "everysec")  # Filling the queue need not wait for the disk.
            _fill(competitor, told, folder)
            redis.config_set("appendfsync", competitor.appendfsync)
            trips_before = _round_trips(redis)
            cores = machine.ALL if processes else machine.SERVER
            with working(competitor, told, folder, options, cores) as worker:
                work = _watch_work(competitor, plan, worker, redis, api, events)
                whole, count = work["whole"], work["events"]
                work["trips"] = (_round_trips(redis) - trips_before) / count
                work["kept"] = (_memory(redis) - memory_before) / count if whole else None
                return work
    except RunFailed as error:
        raise RunFailed(f"{competitor.title}: {error}") from error


def _watch_work(
    competitor: Competitor, plan: Plan, worker: Process, redis: Redis, api: Api, events: int
) -> dict[str, Any]:
    # Costs are counted from the first request on. The start of the worker belongs to no event.
    begun, start = _watch(api, worker, lambda seen: seen["requests"] > 0, _START_SECONDS), time.monotonic()
    meter = Meter(worker, redis)
    seen = _watch(api, worker, lambda seen: seen["answered"] >= events, plan.limit)
    whole = seen["answered"] >= events
    if whole:
        _await_settled(competitor, redis, plan.patience)
        seen = api.seen()
    seconds = max(seen["seconds"], time.monotonic() - start)
    answered = seen["answered"]
    if not answered:
        raise RunFailed(f"no event was fetched: {worker.last_words}")
    if seen["requests"] != seen["resources"] or (whole and seen["requests"] != events):
        raise RunFailed(f"{seen['requests']} requests were made for {seen['resources']} events")
    costs = meter.costs(max(1, answered - begun["answered"]))
    return {"rate": answered / seconds, "events": answered, "whole": whole, **costs}


def _watch(api: Api, worker: Process, enough: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
    """Return the API's counts once they are enough or the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        seen = api.seen()
        if enough(seen) or time.monotonic() > deadline:
            return seen
        if not worker.lives:
            raise RunFailed(f"it ended: {worker.last_words}")
        time.sleep(_LOOK)


def _await_settled(competitor: Competitor, redis: Redis, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := [name for name in competitor.unfinished if redis.exists(name)]:
        if time.monotonic() > deadline:
            raise RunFailed(f"all events were fetched, but {', '.join(left)} is not empty")
        time.sleep(_LOOK)


def _round_trips(redis: Redis) -> int:
    """Return how often Redis has read requests: a pipeline or a script counts once."""
    statistics: Any = redis.info("stats")
    return int(statistics["total_reads_processed"])


def _memory(redis: Redis) -> int:
    """Return the bytes that Redis uses, without the buffers of its clients and of its append-only file."""
    used: Any = redis.info("memory")
    return int(used["used_memory"] - used["mem_clients_normal"] - used["mem_aof_buffer"])


def _fill(competitor: Competitor, told: Mapping[str, str], folder: Path) -> None:
    if not competitor.filler:
        return
    command = (*competitor.interpreter(), *competitor.filler)
    filling = Process(command, told, folder / "fill.log", machine.ALL)
    try:
        if filling.wait(_FILL_SECONDS):
            raise RunFailed(f"its queue could not be filled: {filling.last_words}")
    finally:
        filling.stop()


def end_to_end(plan: Plan, folder: Path) -> dict[str, Any]:
    """Deliver signed events at a steady rate, and measure when the handler of each is called, beyond the API's time."""
    notes = folder / "notes"
    notes.touch()
    settings = {"CREDHOOK_HANDLERS": "bench.programs.credhook_events:noting", "NOTES": str(notes)}
    competitor = replace(OURS, settings=settings)
    with (
        local_redis(folder, options=machine.NO_REWRITES) as url,
        answering(plan.latency, folder) as api,
        serving(who.STRICT, url, folder) as (_, port),
        working(competitor, environment(competitor, url, api.url), folder),
    ):
        count = round(plan.rate * plan.end_to_end_seconds)
        warm_up, deliveries = sign(folder / "deliveries", plan.warm_up + count).split(plan.warm_up)
        generator.drive(port, warm_up, plan.rate)
        if len(_handled(notes, plan.warm_up, _START_SECONDS)) < plan.warm_up:
            raise RunFailed(f"the first {plan.warm_up} deliveries were not handled within {_START_SECONDS:g} s")
        sent = generator.drive(port, deliveries, plan.rate)
        handled = _handled(notes, plan.warm_up + count, _PATIENCE)
    due = {f"msg_{deliveries.first + number:024x}": sent.begun + number / plan.rate for number in range(count)}
    beyond = [handled.get(event_id, math.inf) - at - plan.latency for event_id, at in due.items()]
    figures = {"rate": plan.rate, **sent.figures(beyond)}
    return figures | {"deliveries": count, "handled": len(handled.keys() & due.keys())}


def _handled(notes: Path, count: int, seconds: float) -> dict[str, float]:
    """Return when each event was handled first, once `count` were handled or the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        handled: dict[str, float] = {}
        text = notes.read_text()
        for line in text[: text.rfind("\n") + 1].splitlines():  # The last may be half written.
            event_id, at = line.split()
            handled.setdefault(event_id, float(at))
        if len(handled) >= count or time.monotonic() > deadline:
            return handled
        time.sleep(0.1)


def _measure(plan: Plan, able: Sequence[Competitor], folder: Path, results: dict[str, Any], parts: set[str]) -> None:
    def add(
        number: str, found: dict[str, Any], key: str, which: Competitor, plan: Plan, how: str = "", processes: int = 0
    ) -> None:
        one = report.measured(folder, lambda empty: measure(which, plan, empty, processes))
        found.setdefault(key, []).append(one)
        enough = "" if one["whole"] else f" ({one['events']:,} until its time was up)"
        say(f"{number}: {which.title}{how}: {one['rate']:,.0f} events a second{enough}")

    for number, competitor in report.taking_turns(plan.rounds, able):
        add(number, results["throughput"], competitor.name, competitor, plan)
    swift = [each for each in able if each in who.SWIFT]
    for number in map("round {}".format, range(1, plan.rounds + 1)):
        for latency in plan.latencies if "latencies" in parts else ():
            found = results["latencies"].setdefault(f"{latency * 1_000:g}", {})
            for competitor in swift:
                how = f", an API of {latency * 1_000:g} ms"
                add(number, found, competitor.name, competitor, replace(plan, latency=latency), how)
        for count in plan.processes if "processes" in parts else ():
            add(number, results["processes"], str(count), OURS, plan, f", {count} processes on all cores", count)
        if "end_to_end" in parts:
            one = report.measured(folder, lambda empty: end_to_end(plan, empty))
            results["end_to_end"].append(one)
            say(
                f"{number}: from delivery to handler: p50 {one['p50']:.1f} ms, p99 {one['p99']:.1f} ms beyond the API; "
                f"{one['handled']:,} of {one['deliveries']:,} handled in time"
            )


def _ours_beside(name: str) -> str:
    """Return the name of credhook with as many slots as a competitor has, or with 100."""
    return (OURS_CROWDED if WORKERS[name].slots == OURS_CROWDED.slots else OURS).name


def _fields(results: dict[str, Any]) -> Iterator[tuple[float, dict[str, Rounds]]]:
    """Yield the rounds of all competitors for each latency of the API, in milliseconds."""
    yield results["latency"] * 1_000, results["throughput"]
    yield from ((float(latency), field) for latency, field in results["latencies"].items())


def _sheets(results: dict[str, Any]) -> Iterator[Sheet]:
    for latency, field in _fields(results):
        rows = []
        for name, rounds in sorted(field.items(), key=lambda item: -middle(item[1], "rate")):
            ours = field.get(_ours_beside(name))
            ratio = f"{middle(ours, 'rate') / middle(rounds, 'rate'):.2f}" if ours else ""
            rows.append([results["titles"][name], *report.spread(rounds), ratio, *_costs(rounds)])
        columns = ["competitor", "events/s", "rounds", "credhook / it", *_COSTS, "MiB"]
        yield Sheet(f"Events handled, one process, an API that answers after {latency:g} ms", columns, rows)
    yield Sheet(
        "credhook by its number of processes, which share all cores with Redis and the API",
        ["processes", "events/s", "rounds", *_COSTS, "MiB together"],
        [[count, *report.spread(rounds), *_costs(rounds)] for count, rounds in results["processes"].items()],
    )
    if rounds := results["end_to_end"]:
        figures = (f"{middle(rounds, figure):.1f}" for figure in ("p50", "p99", "late"))
        handled, count = (sum(one[figure] for one in rounds) for figure in ("handled", "deliveries"))
        yield Sheet(
            "credhook from delivery to handler, beyond the API's own latency",
            ["deliveries/s", "p50, ms", "p99, ms", "generator late, ms", "handled in time"],
            [[f"{rounds[0]['rate']:g}", *figures, f"{handled:,} of {count:,}"]],
        )
    yield report.targets(_targets(results))


def _costs(rounds: Rounds) -> tuple[str, ...]:
    trips = middle(rounds, "trips")
    on_redis = (f"{middle(rounds, 'redis'):,.0f}", f"{trips:.2f}") if trips >= _LOOKING else ("", "")
    return f"{middle(rounds, 'cpu'):,.0f}", *on_redis, f"{max(one['peak'] for one in rounds):.0f}"


def _targets(results: dict[str, Any]) -> Iterator[list[str]]:
    titles, throughput = results["titles"], results["throughput"]
    for latency, field in _fields(results):
        for ours, peer in ((OURS.name, BULLMQ.name), (OURS_CROWDED.name, BULLMQ_CROWDED.name)):
            if {ours, peer} <= field.keys():
                beside = f"{titles[ours]} / {titles[peer]}, an API of {latency:g} ms"
                yield report.at_least(beside, middle(field[ours], "rate") / middle(field[peer], "rate"), 0.85)
                cost = middle(field[ours], "cpu") / middle(field[peer], "cpu")
                yield report.at_most(f"processor time each, {beside}", cost, 1.4)
    rates = {name: middle(rounds, "rate") for name, rounds in throughput.items()}
    peers = [name for name in (RQ_SIMPLE.name, who.DRAMATIQ.name) if name in rates]
    best = max(peers, key=rates.__getitem__, default="")
    for ours in (name for name in (OURS.name, OURS_CROWDED.name) if name in rates):
        others = [(HTTPX.name, "", 0.75), (best, "the best Python peer, ", 1.5), (RQ_SIMPLE.name, "", 50.0)]
        for other, rank, least in others if ours == OURS.name else others[1:2]:
            if other in rates:
                beside = f"{titles[ours]} / {rank}{titles[other]}"
                yield report.at_least(beside, rates[ours] / rates[other], least)
        rounds, slots = throughput[ours], f"{WORKERS[ours].slots} at once"
        yield report.at_most(f"round trips to Redis per event at full load, {slots}", middle(rounds, "trips"), 0.3)
        most = max(one["peak"] for one in rounds)
        yield report.at_most(f"most memory of `credhook worker`, {slots}, MiB", most, 150, ".0f")
    if {"1", "4"} <= results["processes"].keys():
        one, four = (middle(results["processes"][count], "cpu") for count in ("1", "4"))
        yield report.at_least("events per second of processor time, four processes / one", one / four, 1.0)
    if rounds := results["end_to_end"]:
        what = f"p99 from delivery to handler at {rounds[0]['rate']:g} a second, beyond the API, ms"
        yield report.at_most(what, median(one["p99"] for one in rounds), 4.0)


def _setting(plan: Plan) -> dict[str, str]:
    packages = json.loads((PROGRAMS / "package.json").read_text())["dependencies"]
    dramatiq = re.findall(r"^dramatiq==(\S+)", (PROGRAMS / "dramatiq_actors.txt").read_text(), re.MULTILINE)
    nodes = (f"{name} {packages[name]}" for name in ("bullmq", "undici"))
    others = (f"dramatiq {dramatiq[0]}", *nodes)
    return machine.here(["rq", "pyreqwest", "httpx", "redis"], *others) | {
        "api": "a stub on the other core, HTTP on loopback without TLS",
        "events": f"each fetched once, {plan.events:,} at most; a worker that is not done is stopped after "
        f"{plan.limit:g} s; median of {plan.rounds} rounds",
        "redis": "a new one for every run, no rewrites meanwhile; credhook's fsyncs always, as we ship it, "
        "its peers' every second, which is faster",
    }


def _capacity(folder: Path) -> str:
    """Return how many requests the stub answers alone, as far as wrk can ask from the server's core."""
    with answering(0, folder) as api, machine.on(machine.SERVER):
        command = ["wrk", "-t1", "-c64", "-d1s", f"{api.url}/me-creds/api/credentials/iss_0"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return f"; alone it answers {float(re.findall(r'Requests/sec: *([0-9.]+)', said)[0]):,.0f} requests/s"


@click.command()
@click.option("--rounds", default=_PLAN.rounds, show_default=True, type=click.IntRange(1), help="Medians are of these.")
@click.option("--events", default=_PLAN.events, show_default=True, type=click.IntRange(100), help="In a queue at most.")
@click.option("--limit", default=_PLAN.limit, show_default=True, help="Seconds after which a slow worker is stopped.")
@click.option("--latency", default=_PLAN.latency, show_default=True, help="Seconds after which the API answers.")
@click.option("--competitors", default=",".join(WORKERS), show_default=True, help="Names, comma-separated.")
@click.option("--latencies/--no-latencies", default=True, show_default=True, help="Other latencies.")
@click.option("--processes/--no-processes", default=True, show_default=True, help="More processes.")
@click.option("--end-to-end/--no-end-to-end", default=True, show_default=True, help="From delivery to handler.")
@click.option("--small", is_flag=True, help="Credhook and bare httpx, briefly: whether all this runs.")
@report.OUT
def main(*, competitors: str, small: bool, out: Path, **options: Any) -> None:
    """Measure the worker beside its peers: tables, and work.json and work.md with the same."""
    parts = {part for part in ("latencies", "processes", "end_to_end") if options.pop(part)}
    plan = _SMALL if small else replace(_PLAN, **options)
    able = who.chosen([OURS.name, HTTPX.name] if small else competitors.split(","), WORKERS)
    results: dict[str, Any] = {
        "setting": _setting(plan),
        "titles": {each.name: each.title for each in able},
        "latency": plan.latency,
        **{part: {} for part in ("throughput", "latencies", "processes")},
        "end_to_end": [],
    }
    with report.measuring("work", out, results) as folder:
        results["setting"]["api"] += _capacity(folder)
        _measure(plan, able, folder, results, parts)
    report.publish("work", out, results["setting"], _sheets(results))


if __name__ == "__main__":
    main()
