"""A fleet under a steady load does not grow: memory, descriptors and Redis stay as they were for half an hour.

Some deliveries come twice, some are of a type without a handler or of an unknown one, some are put off or given up. The
test erases events older than a sixth of the run, since the shortest retention is an hour. The long form takes
SOAK_MINUTES (30) at SOAK_RATE deliveries a second (200), and leaves steady_load.csv in SOAK_FOLDER.
"""

import csv
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from credhook.store.bulk import batched
from support.process import commands
from support.process.other_version import Member
from support.process.scraping import Scrape
from support.process.serving import Process, children
from support.receiver.floods import deliver, resident
from support.receiver.signing import body
from support.store.stores import INDEX
from support.waiting import until
from support.worker.fleet_harness import SHORT, SIZES, FleetHarness
from support.worker.harness import COMPLETED, DATA

MINUTES, RATE = (float(os.environ.get(name, default)) for name, default in (("SOAK_MINUTES", 30), ("SOAK_RATE", 200)))
SENDERS = 4
#: Unit → how much more of it each may have at the end than after a third of the run.
MORE = {"MiB": 4.0, "descriptors": 20.0}
#: Events that the worker has under way at most. A slow machine has more of them, and so more connections.
CONCURRENCY = 10

HANDLER = """
@handlers.on("openid4vc.issuance.completed", "openid4vc.verification.data")
async def first(event, context):
    if event.webhook_id.endswith("03") and event.attempt == 1:
        raise Retry(after=1)
    if event.webhook_id.endswith("04"):
        raise GiveUp("as the test says")
"""
#: The last two digits of a delivery's number → its type. All others are completed issuances.
TYPES = {0: "openid4vc.issuance.renamed", 1: "openid4vc.issuance.failed", 2: DATA}


@contextmanager
def deliveries(port: int, rate: float) -> Iterator[Counter[int]]:
    """Deliver from threads, so many a second, or fewer if the machine is slow. Yield status → how many had it."""
    statuses: Counter[int] = Counter()
    over, lock = threading.Event(), threading.Lock()

    def send(number: int) -> None:
        due = time.monotonic()
        while not over.wait(due - time.monotonic()):
            due = max(due, time.monotonic() - 1) + SENDERS / rate
            event_type = TYPES.get(number % 100, COMPLETED)
            content = body(event_type, f"{'pre' if event_type == DATA else 'iss'}_{number}")
            for _ in range(1 + (number % 50 == 0)):
                status = deliver(port, f"m{number:09}", content)
                with lock:
                    statuses[status] += 1
            number += SENDERS

    threads = [threading.Thread(target=send, args=(first,)) for first in range(SENDERS)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        over.set()
        for thread in threads:
            thread.join()


def sample(rig: FleetHarness, parts: Mapping[str, Process]) -> dict[str, float]:
    server: Any = rig.redis.info()
    families = {name: [process.process.pid, *children(process)] for name, process in parts.items()}
    families["Redis"] = [server["process_id"]]
    own = server["mem_clients_normal"] + server["mem_aof_buffer"]
    figures = {"Redis's data MiB": (server["used_memory"] - own) / 2**20}
    for name, family in families.items():
        figures[f"{name} MiB"] = sum(map(resident, family))
        figures[f"{name} descriptors"] = float(sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in family))
    counts = rig.redis.pipeline(transaction=False)
    counts.zcard(INDEX.open)
    counts.xlen(INDEX.by_time)
    open_events, remembered = counts.execute()
    return figures | {"open events": float(open_events), "remembered events": float(remembered)}


@pytest.mark.timeout(MINUTES * 60 + 600)
@pytest.mark.parametrize("size", SIZES)
def test_half_an_hour_of_load_leaves_nothing_behind(rig: FleetHarness, size: str) -> None:
    seconds, rate = (12.0, 50.0) if size == SHORT else (MINUTES * 60, RATE)
    rig.plugin(HANDLER)
    samples = list[dict[str, float]]()
    # Python starts anew: a fork would share memory with the process that it was forked from.
    started = partial(Member, rig, CREDHOOK_CONCURRENCY=str(CONCURRENCY))
    with started("receiver", "receiver") as receiver, started("worker", "worker") as worker:
        until(lambda: receiver.readiness()[0] == worker.readiness()[0] == 200, what="readiness")
        parts = {"receiver": receiver, "worker": worker}
        with deliveries(receiver.port, rate) as statuses:
            began = time.monotonic()
            while (elapsed := time.monotonic() - began) < seconds or len(samples) < 12:
                accepted, ran = (
                    Scrape.of(part.admin).total(f"credhook_{name}_total")
                    for part, name in ((receiver, "deliveries"), (worker, "handler_runs"))
                )
                progress = {"minutes": elapsed / 60, "deliveries": accepted, "handler runs": ran}
                samples.append(progress | sample(rig, parts))
                if len(samples) % 4 == 0:
                    older = ("events", "erase", "--yes", "--until", f"{seconds / 6:.0f}s")
                    erased = commands.invoke(*older, environment=rig.environment, folder=rig.folder)
                    assert erased.returncode == 0, erased.stderr
                    # Each leaves a mark of 115 bytes, which lasts longer than the run.
                    for marks in batched(rig.redis.scan_iter(f"{INDEX.erased}:*", count=1_000), 1_000):
                        rig.redis.delete(*marks)
                time.sleep(max(1.0, seconds / 180))
    columns = {name: [each[name] for each in samples] for name in samples[0]}
    title = f"{seconds / 60:.3g} minutes at {statuses[202] / elapsed:.0f} deliveries a second"
    if folder := os.environ.get("SOAK_FOLDER"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / "steady_load.csv").open("w") as file:
            csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    third = len(samples) // 3
    ends = (third + third // 2, third * 2, third * 3)
    medians = {name: [median(values[end - third // 2 : end]) for end in ends] for name, values in columns.items()}
    print(f"\n{title}, answers {dict(statuses)}; medians of three periods:")  # noqa: T201  For the record.
    for name, three in medians.items():
        print(f"  {name}: {', '.join(f'{each:,.1f}' for each in three)}")  # noqa: T201
    more = {name: last - first for name, (first, _, last) in medians.items()}
    assert min(more["deliveries"], more["handler runs"]) > 0
    # On a slow machine the rate varies, and so does the number of events. Each takes less than a KiB.
    events = max(0.0, more["remembered events"]) / 1_024
    allowed = {name: MORE.get(name.split()[-1], math.inf) + events * name.startswith("Redis") for name in more}
    if rig.redis.info("memory")["mem_allocator"] == "libc":  # The wheel's. It fragments: 9 MiB more in 20 minutes.
        del more["Redis MiB"]
    assert {name: change for name, change in more.items() if change > allowed[name]} == {}
