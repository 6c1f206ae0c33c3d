"""`python -m bench.work`: the worker beside its peers, on one machine, in one run.

Every competitor gets the same events, one process, one core, and a Redis of its own, configured alike. All fetch the
same details from the same stub of the API, over loopback and without TLS.
"""

import json
import math
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from bench import machine, report
from bench.competitors import BULLMQ, DRAMATIQ, OURS, OURS_CROWDED, WORKERS, Competitor, chosen
from bench.machine import HERE, PROGRAMS, Meter, Process, RunFailed, say
from bench.report import Sheet, middle
from redis import Redis

from credhook.sandbox.local.environment import free_port, local_redis

#: Seconds until a worker must have asked for the first event, and for filling a queue.
_START_SECONDS: Final = 60.0
_FILL_SECONDS: Final = 600.0

#: Seconds between two looks at the requests that the API has counted.
_LOOK: Final = 0.05


#: Seconds that a worker whose slots are never empty would be busy, at most; after which a slow worker is stopped; and
#: until a worker that has fetched everything must have settled it.
_BUSY_SECONDS: Final = 10.0
_LIMIT_SECONDS: Final = 30.0
_SETTLE_SECONDS: Final = 15.0


@contextmanager
def answering(latency: float, folder: Path) -> Iterator[str]:
    """Run the stub of the platform's API on a free port. It answers after `latency` seconds. Yield its URL."""
    port = free_port()
    command = (sys.executable, PROGRAMS / "stub.py", str(port), str(latency))
    with Process(command, {}, folder / "api.log", machine.LOAD) as process:
        process.await_answer(port)
        yield f"http://127.0.0.1:{port}"


def seen_by(api: str) -> dict[str, Any]:
    """Return the stub's numbers of requests, of their resources and answers, and the seconds from first to last."""
    with urllib.request.urlopen(f"{api}/seen", timeout=10) as answer:
        counts: dict[str, Any] = json.loads(answer.read())
        return counts


def environment(competitor: Competitor, redis_url: str, api_url: str, events: int) -> dict[str, str]:
    return {
        "PYTHONPATH": str(HERE.parent),
        "REDIS_URL": redis_url,
        "API_URL": api_url,
        "EVENTS": str(events),
        "SLOTS": str(competitor.slots),
        "CREDHOOK_API_URL": api_url,
        "CREDHOOK_TOKEN_URL": f"{api_url}/token",
        "CREDHOOK_CLIENT_ID": "bench",
        "CREDHOOK_CLIENT_SECRET": "bench",
        "CREDHOOK_CONCURRENCY": str(competitor.slots),
        **competitor.settings,
    }


def measure(competitor: Competitor, most: int, latency: float, folder: Path) -> dict[str, Any]:
    """Fill a competitor's queue in an empty folder, start its worker, and watch it until it is done or out of time."""
    # No more than could be handled if only the API were waited for.
    events = math.ceil(min(most, competitor.slots * _BUSY_SECONDS / latency)) if latency else most
    try:
        with (
            local_redis(folder, options=machine.NO_REWRITES) as url,
            Redis.from_url(url) as redis,
            answering(latency, folder) as api,
        ):
            memory_before = _memory(redis)
            told = environment(competitor, url, api, events)
            redis.config_set("appendfsync", "everysec")  # Filling the queue need not wait for the disk.
            _fill(competitor, told, folder)
            redis.config_set("appendfsync", competitor.appendfsync)
            with Process(competitor.command(), told, folder / "worker.log") as worker:
                work = _watch_work(competitor, worker, redis, api, events)
                work["kept"] = (_memory(redis) - memory_before) / work["events"] if work["whole"] else None
                return work
    except RunFailed as error:
        raise RunFailed(f"{competitor.title}: {error}") from error


def _watch_work(competitor: Competitor, worker: Process, redis: Redis, api: str, events: int) -> dict[str, Any]:
    # Costs are counted from the first request on. The start of the worker belongs to no event.
    begun, start = _watch(api, worker, lambda seen: seen["requests"] > 0, _START_SECONDS), time.monotonic()
    meter = Meter(worker, redis)
    seen = _watch(api, worker, lambda seen: seen["answered"] >= events, _LIMIT_SECONDS)
    whole = seen["answered"] >= events
    if whole:
        _await_settled(competitor, redis)
        seen = seen_by(api)
    seconds = max(seen["seconds"], time.monotonic() - start)
    answered = seen["answered"]
    if not answered:
        raise RunFailed(f"no event was fetched: {worker.last_words}")
    if seen["requests"] != seen["resources"] or (whole and seen["requests"] != events):
        raise RunFailed(f"{seen['requests']} requests were made for {seen['resources']} events")
    costs = meter.costs(max(1, answered - begun["answered"]))
    return {"rate": answered / seconds, "events": answered, "whole": whole, **costs}


def _watch(api: str, worker: Process, enough: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
    """Return the API's counts once they are enough or the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        seen = seen_by(api)
        if enough(seen) or time.monotonic() > deadline:
            return seen
        if not worker.lives:
            raise RunFailed(f"it ended: {worker.last_words}")
        time.sleep(_LOOK)


def _await_settled(competitor: Competitor, redis: Redis) -> None:
    deadline = time.monotonic() + _SETTLE_SECONDS
    while left := [name for name in competitor.unfinished if redis.exists(name)]:
        if time.monotonic() > deadline:
            raise RunFailed(f"all events were fetched, but {', '.join(left)} is not empty")
        time.sleep(_LOOK)


def _memory(redis: Redis) -> int:
    """Return the bytes that Redis uses, without the buffers of its clients and of its append-only file."""
    used: Any = redis.info("memory")
    return int(used["used_memory"] - used["mem_clients_normal"] - used["mem_aof_buffer"])


def _fill(competitor: Competitor, told: Mapping[str, str], folder: Path) -> None:
    command = (*competitor.interpreter(), *competitor.filler)
    with Process(command, told, folder / "fill.log", machine.ALL) as filling:
        if filling.wait(_FILL_SECONDS):
            raise RunFailed(f"its queue could not be filled: {filling.last_words}")


def _ours_beside(name: str) -> str:
    """Return the name of credhook with as many slots as a competitor has, or with 100."""
    return (OURS_CROWDED if WORKERS[name].slots == OURS_CROWDED.slots else OURS).name


def _sheets(results: dict[str, Any]) -> Iterator[Sheet]:
    for latency, field in results["rounds"].items():
        title = f"Events handled, one process, an API that answers after {latency} ms"
        yield report.ranking(title, "events/s", results["titles"], field, _ours_beside, f"work-{latency}-ms")
    yield Sheet("Targets", report.TARGETS, list(_targets(results)))


def _targets(results: dict[str, Any]) -> Iterator[list[str]]:
    titles = results["titles"]
    for latency, field in results["rounds"].items():
        rates = {name: middle(rounds, "rate") for name, rounds in field.items()}
        for ours, peer, least in ((OURS_CROWDED, BULLMQ, 0.9), (OURS, DRAMATIQ, 1.5)):
            if {ours.name, peer.name} <= rates.keys():
                beside = f"{titles[ours.name]} / {titles[peer.name]}, an API of {latency} ms"
                yield report.target(beside, rates[ours.name] / rates[peer.name], least=least)
                if peer is BULLMQ:
                    cost = middle(field[ours.name], "cpu") / middle(field[peer.name], "cpu")
                    yield report.target(f"their processor time, {latency} ms", cost, most=1.4)
        if rounds := field.get(OURS_CROWDED.name):
            at = f"{OURS_CROWDED.slots} at once, an API of {latency} ms"
            yield report.target(f"most memory, {at}, MiB", max(one["peak"] for one in rounds), most=150)


def _setting(rounds: int, events: int) -> dict[str, str]:
    packages = json.loads((PROGRAMS / "package.json").read_text())["dependencies"]
    dramatiq = re.findall(r"^dramatiq==(\S+)", (PROGRAMS / "dramatiq_actors.txt").read_text(), re.MULTILINE)
    setting = machine.here("pycurl", "httpx", "redis")
    setting["software"] += f", dramatiq {dramatiq[0]}, bullmq {packages['bullmq']}, undici {packages['undici']}"
    return setting | {
        "events": f"each fetched once from a stub on the other core, {events:,} at most; a worker that is not "
        f"done is stopped after {_LIMIT_SECONDS:g} s; median of {rounds} rounds",
        "redis": "a new one for every run, no rewrites meanwhile; credhook's fsyncs always, as we ship it, "
        "its peers' every second, which is faster",
    }


@click.command()
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Medians are of these.")
@click.option("--events", default=40_000, show_default=True, type=click.IntRange(100), help="In a queue at most.")
@click.option("--latency", multiple=True, default=(0.05, 0.0), show_default=True, help="Seconds that the API takes.")
@click.option("--competitors", default=",".join(WORKERS), show_default=True, help="Names, comma-separated.")
@click.option("--small", is_flag=True, help="Credhook alone, briefly: check that all this runs.")
@report.OUT
def main(*, rounds: int, events: int, latency: tuple[float, ...], competitors: str, small: bool, out: Path) -> None:
    """Measure the worker beside its peers: tables, and work.json and work.md with the same."""
    rounds, events = (1, 200) if small else (rounds, events)
    able = chosen([OURS.name, OURS_CROWDED.name] if small else competitors.split(","), WORKERS)
    fields: dict[str, Any] = {f"{seconds * 1_000:g}": {} for seconds in latency}
    titles = {each.name: each.title for each in able}
    results: dict[str, Any] = {"setting": _setting(rounds, events), "titles": titles, "rounds": fields}
    with report.measuring("work", out, results) as folder:
        for seconds, field in zip(latency, fields.values(), strict=True):
            for number, which in report.taking_turns(rounds, able):
                one = report.measured(folder, partial(measure, which, events, seconds))
                field.setdefault(which.name, []).append(one)
                enough = "" if one["whole"] else f" ({one['events']:,} until its time was up)"
                how = f"{which.title}, an API of {seconds * 1_000:g} ms"
                say(f"{number}: {how}: {one['rate']:,.0f} events a second{enough}")
    report.publish("work", out, results["setting"], _sheets(results))


if __name__ == "__main__":
    main()
