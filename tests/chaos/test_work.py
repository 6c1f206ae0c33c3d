"""Every handler runs at least once, and never again once it is recorded as done: workers and Redis die again and again.

Two handlers run for each event, the second after the first, and note each begin and end. A run is one too many if
it begins after its handler's mark: the first one's is confirmed before the second begins, and the second one's has the
time of the event's end. A run that ended, but whose mark was lost in a death, is repeated, and a death must explain it.

The second bills, as tests/examples/billing does: a repetition must not bill again, and none may be forgotten.
"""
# ruff: noqa: T201  The counts are what `make soak` is run for.

import os
import random
import signal
import sqlite3
import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import billing
import pytest
from redis.exceptions import RedisError

from support.process.serving import Process, children
from support.redis.redis_server import MortalRedis
from support.worker.fleet_harness import SHORT, SIZES, FleetHarness, Note, Stub
from support.worker.harness import COMPLETED, DATA

#: Events that one of the processes has under way.
CONCURRENCY = 10
#: Bytes of notes between two deaths: of some tens of runs to some hundreds.
BETWEEN = (5_000, 50_000)

TWO_HANDLERS = """
from billing import bill, create_tables

handlers.startup(create_tables)

async def run(name, event, context):
    note("begin", name, event.webhook_id, context.idempotency_key, os.getpid())
    if name == "second":
        await asyncio.to_thread(bill, event, context)
    await asyncio.sleep(random.uniform(0.02, 0.15))
    if name == "second" and event.attempt == 1 and random.random() < 0.2:
        note("put_off", name, event.webhook_id, context.idempotency_key, os.getpid())
        raise Retry(after=random.uniform(0, 0.5))
    note("end", name, event.webhook_id, context.idempotency_key, os.getpid())

@handlers.on("*")
async def first(event, context):
    await run("first", event, context)

@handlers.on("*", after=first)
async def second(event, context):
    await run("second", event, context)
"""


@dataclass
class Deaths:
    """Events without end, at least so many, until workers and Redis have died so many times.

    Attributes:
        of_workers, of_redis: how often a worker process or a whole fleet, and Redis, are to be killed.
        supplied: the webhook-ids that were accepted.
        fleets: two supervisors, two worker processes each; `whole` counts those killed with their supervisor.
        died: process → when it was killed.
    """

    rig: FleetHarness
    redis: MortalRedis
    count: int
    of_workers: int
    of_redis: int
    supplied: list[str] = field(default_factory=list)
    fleets: list[Process] = field(default_factory=list)
    died: dict[int, float] = field(default_factory=dict)
    whole: int = 0

    def run(self) -> None:
        todo = ["worker"] * self.of_workers + ["redis"] * self.of_redis
        random.shuffle(todo)
        self.fleets = [self._start(number) for number in range(2)]
        try:
            self.rig.started(*self.fleets, each=2)
            due = self._drawn()
            while len(self.supplied) < self.count or todo:
                self._supply()
                if todo and self._noted() >= due:
                    self._kill(todo.pop())
                    due = self._drawn()
                time.sleep(0.01)
            self.rig.settles(within=600)
        finally:
            for fleet in self.fleets:
                fleet.kill()

    def _noted(self) -> int:
        """Bytes that handlers have noted: their work, whatever time it takes them."""
        return (self.rig.folder / "notes").stat().st_size

    def _drawn(self) -> int:
        """How much they will have noted at some instant amid the work that comes."""
        return self._noted() + random.randint(*BETWEEN)

    def _start(self, number: int) -> Process:
        # Ten events die with each process. What ends while the mark of another is on its way to Redis is what a death
        # repeats: with thousands of ends a second it would be more than one for each.
        return self.rig.worker(f"fleet{number}", "--processes", "2", CREDHOOK_CONCURRENCY=str(CONCURRENCY))

    def _supply(self) -> None:
        """Keep the queue from running dry."""
        try:
            if self.rig.redis.llen("rq:queue:credhook") < 200:
                start = len(self.supplied)
                new = [f"m{number:06}" for number in range(start, start + 50)]
                self.rig.accept(*((one, DATA if one[-1] in "37" else COMPLETED, f"pre_{one}") for one in new))
                self.supplied += new
        except (RedisError, OSError):
            pass  # Accepted again the next time round: the receiver dedupes.

    def _kill(self, what: str) -> None:
        if what == "redis":
            self.redis.kill()
            time.sleep(random.uniform(0, 0.3))
            self.redis.start()
            return
        number = random.randrange(len(self.fleets))
        alive = children(self.fleets[number])
        if alive and random.random() < 0.7:
            victim = random.choice(alive)
            os.kill(victim, signal.SIGKILL)
            self.died[victim] = time.time()
        else:
            self.fleets[number].kill()
            self.died |= dict.fromkeys(alive, time.time())
            self.fleets[number] = self._start(number)
            self.whole += 1


class Runs:
    """All runs of both handlers, read from the notes.

    Attributes:
        missing: handlers of an event that never ran to the end.
        too_late: runs that began after the mark of being done.
        repeated: runs that began after one of the same had ended well: when that one ended, and in which process.
        interrupted: how many runs neither ended nor asked for another attempt.
        keys: True if every run had the idempotency key of its handler and event.
    """

    def __init__(self, notes: list[Note], records: dict[str, dict[str, str]]) -> None:
        begins: dict[tuple[str, str], list[float]] = defaultdict(list)
        ends: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        self.keys = True
        for note in notes:
            what, name, webhook_id, key, process = note.words
            self.keys &= key == f"{webhook_id}:test.{name}"
            if what == "begin":
                begins[name, webhook_id].append(note.at)
            elif what == "end":
                ends[name, webhook_id].append((note.at, int(process)))
        marked = {("first", one): min(begins["second", one]) for one in records if begins["second", one]}
        marked |= {("second", one): (int(records[one].get("settled", 0)) + 1) / 1000 for one in records}
        self.missing = sum(not ends[run] for run in product(("first", "second"), records))
        self.too_late = sum(at > marked[run] for run, times in begins.items() for at in times)
        self.repeated = [
            min(ends[run]) for run, times in begins.items() for at in times if ends[run] and (at,) > min(ends[run])
        ]
        self.interrupted = sum(1 if note.words[0] == "begin" else -1 for note in notes)


@pytest.mark.parametrize("size", SIZES)
def test_workers_and_redis_killed_at_random_instants(tmp_path: Path, stub: Stub, size: str) -> None:
    stub.takes = 0.02
    with MortalRedis(tmp_path) as redis:
        rig = FleetHarness(tmp_path, redis.url, stub)
        rig.plugin(TWO_HANDLERS)
        bills = tmp_path / "bills"
        rig.environment |= {"PYTHONPATH": str(Path(billing.__file__).parent), "BILLING_DATABASE": str(bills)}
        deaths = Deaths(rig, redis, *((400, 6, 2) if size == SHORT else (20_000, 50, 10)))
        deaths.run()
        records = rig.records(deaths.supplied)
        rig.redis.close()
    lost = sum(one.get("state") != "done" for one in records.values())
    runs = Runs(rig.notes(), records)
    with closing(sqlite3.connect(bills)) as database:
        ((billed, keys),) = database.execute(
            "SELECT (SELECT sum(cents) FROM bills) / ?, (SELECT count(*) FROM billed)", [float(billing.CENTS)]
        )
    print(
        f"\n{len(records)} events, kill -9 of {len(deaths.died)} worker processes ({deaths.whole} times a whole fleet) "
        f"and {deaths.of_redis} times of Redis: lost {lost}, handlers started after their done mark {runs.too_late}, "
        f"ended well and run again {len(runs.repeated)}, interrupted {runs.interrupted}; billed {billed:g}, {keys} keys"
    )
    assert (lost, runs.missing, runs.too_late) == (0, 0, 0)
    assert runs.keys
    assert billed == len(records)
    # A kill repeats what ended while its mark was on the way to Redis: of each event that was under way one at most.
    assert all(deaths.died[process] > ended for ended, process in runs.repeated)
    assert max(Counter(process for _, process in runs.repeated).values(), default=0) <= CONCURRENCY
    # It would prove nothing if nothing had been under way.
    assert runs.interrupted >= deaths.of_workers / 3
