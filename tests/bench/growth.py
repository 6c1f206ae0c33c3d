"""`python -m bench.growth`: how the cost of an event grows.

It grows with the events in the store, with smaller groups, with fewer resources, and with more processes.

The first three count the processor time of Redis, without its waits for the disk, for groups of events as receivers and
workers write them. The last counts a whole worker.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from bench import machine, report, work
from bench.competitors import OURS, Competitor
from bench.machine import say
from bench.report import Sheet, middle
from redis.asyncio import Redis

from credhook.events import Event
from credhook.receiver.inbox import Delivery
from credhook.sandbox.local.environment import local_redis
from credhook.store import State
from credhook.store.job import accept_arguments
from credhook.store.store import AsyncStore, Store
from credhook.worker.queue.claims import Claims, Settlement

T = TypeVar("T")

#: Events that a figure is the mean of, and events of a group.
_SAMPLE: Final = 5_000
_GROUP: Final = 50

_GROUPS: Final = (64, 16, 4, 1)
_RESOURCES: Final = (5_000, 500, 50, 5, 1)
_PROCESSES: Final = (1, 2, 4, 8, 16, 32)

_STEPS: Final = ("accept", "claim", "settle")
_RETENTION: Final = 604_800
_DONE: Final = Settlement(State.DONE, records={"bench.handle": "done 1"}, latest=(3, 1_800_000_000_000))


class GrowingStore:
    """A store that gets more and more events, and what each of them costs its Redis.

    Attributes:
        events: how many it has got.
    """

    def __init__(self, store: AsyncStore, redis_pid: int) -> None:
        self.events = 0
        self._store, self._schedule = store, Path(f"/proc/{redis_pid}/schedstat")
        self._claims = Claims(store, lease=600, worker="bench.1.1")

    async def handle(self, count: int, *, group: int = _GROUP, resources: int | None = None) -> dict[str, float]:
        """Accept, claim and settle events. Return Redis's microseconds for an event, by step.

        `resources`: how many resources the events share. Without it each event has its own.
        """
        spent = Counter[str]()
        first, self.events = self.events, self.events + count
        for start in range(first, self.events, group):
            deliveries = [
                Delivery(f"msg_{number:024x}", Event("openid4vc.issuance.completed", f"iss_{resource:024x}"))
                for number in range(start, min(start + group, self.events))
                for resource in [number if resources is None else first + number % resources]
            ]
            told = accept_arguments(deliveries, queue=self._store.queue, retention=_RETENTION, now=datetime.now(UTC))
            await self._counted(spent, "accept", self._store.run("accept", told))
        while held := (await self._counted(spent, "claim", self._claims.take(group))).claims:
            while held:
                settling = asyncio.gather(*(self._claims.settle(claim, _DONE, follow=True) for claim in held))
                held = tuple(following for _, following in await self._counted(spent, "settle", settling) if following)
        return {step: spent[step] / count for step in _STEPS}

    async def _counted(self, spent: Counter[str], step: str, doing: Awaitable[T]) -> T:
        before = self._redis_nanoseconds()
        result = await doing
        spent[step] += (self._redis_nanoseconds() - before) // 1_000
        return result

    def _redis_nanoseconds(self) -> int:
        """Return for how long Redis's main thread has run."""
        return int(self._schedule.read_text().split()[0])


async def store_curves(folder: Path, stored: Sequence[int], sample: int) -> dict[str, dict[int, dict[str, float]]]:
    """Return what an event costs Redis, by what is varied and by its values."""
    curves: dict[str, dict[int, dict[str, float]]] = {"groups": {}, "resources": {}, "stored": {}}
    with local_redis(folder, options=machine.NO_REWRITES) as url:
        async with Redis.from_url(url) as redis:
            await redis.config_set("appendfsync", "everysec")
            server: Any = await redis.info("server")
            growing = GrowingStore(Store(redis, "credhook", retention=_RETENTION), server["process_id"])
            await growing.handle(sample)  # So that scripts are loaded and memory is warm.
            for group in _GROUPS:
                curves["groups"][group] = await growing.handle(sample, group=group)
            for resources in _RESOURCES:
                curves["resources"][resources] = await growing.handle(sample, resources=resources)
            await redis.flushdb()
            growing = GrowingStore(Store(redis, "credhook", retention=_RETENTION), server["process_id"])
            for events in stored:
                await growing.handle(events - growing.events)
                curves["stored"][events] = await growing.handle(sample)
                one_more = sum(curves["stored"][events].values())
                say(f"{events:,} events in the store: {one_more:.0f} µs of Redis for one more")
    return curves


def _of_processes(number: int) -> Competitor:
    return replace(
        OURS,
        name=f"{number}",
        title=f"{number} processes",
        arguments=(*OURS.arguments, "--processes", f"{number}"),
    )


def _sheets(results: dict[str, Any]) -> list[Sheet]:
    sheets = []
    for varied, title in (
        ("stored", "events in the store"),
        ("groups", "events of a group"),
        ("resources", "resources of 5,000 events"),
    ):
        rows = [
            [f"{value:,}", f"{sum(spent.values()):.0f}", *(f"{spent[step]:.0f}" for step in _STEPS)]
            for value, spent in results["curves"][varied].items()
        ]
        sheets.append(Sheet(f"Redis's time by {title}", [title, "µs an event", *_STEPS], rows, f"growth-{varied}"))
    rows = [
        [number, *(f"{middle(rounds, figure):,.0f}" for figure in ("rate", "cpu", "redis", "peak"))]
        for number, rounds in results["processes"].items()
    ]
    columns = ["processes", "events/s", "µs each", "Redis, µs each", "MiB"]
    return [*sheets, Sheet("A worker's processes, all on one core", columns, rows, "growth-processes")]


@click.command()
@click.option("--events", default=1_000_000, show_default=True, type=click.IntRange(1_000), help="Stored at most.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Of the processes: medians.")
@click.option("--small", is_flag=True, help="Briefly: check that all this runs.")
@report.OUT
def main(*, events: int, rounds: int, small: bool, out: Path) -> None:
    """Measure how the cost of an event grows: tables, plots, and growth.json and growth.md with the same."""
    stored = [stored for stored in (10**power for power in range(3, 8)) if stored <= (1_000 if small else events)]
    processes, sample = ((1,), 100) if small else (_PROCESSES, _SAMPLE)
    results: dict[str, Any] = {"setting": machine.here("redis"), "curves": {}, "processes": {}}
    with report.measuring("growth", out, results) as folder:
        results["curves"] = report.measured(folder, lambda empty: asyncio.run(store_curves(empty, stored, sample)))
        for number, which in report.taking_turns(1 if small else rounds, list(map(_of_processes, processes))):
            one = report.measured(folder, partial(work.measure, which, 4 * sample, 0.0))
            results["processes"].setdefault(which.name, []).append(one)
            say(f"{number}: {which.title}: {one['rate']:,.0f} events a second")
    report.publish("growth", out, results["setting"], _sheets(results))


if __name__ == "__main__":
    main()
