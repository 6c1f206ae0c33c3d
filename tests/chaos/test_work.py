"""Every handler runs at least once, and never again once it is recorded as done: workers and Redis die again and again.

What was done twice is told apart by the handlers' own notes, one for each begin and each end of a run. Two handlers run
for each event, and each has its mark of being done at a moment that a note can be compared with:

- the first one's is written, and confirmed by a Redis that fsyncs each write, before the second begins: a run of the
  first that begins after a run of the second has begun is one too many;
- the second one's is written together with the event's end, whose time the ledger keeps: a run that begins later is one
  too many. Redis and handlers share a clock.

A run that ended, but whose process died before Redis had its mark, is repeated: that is what "at least once" means.
Each such repetition must have a death to explain it.
"""
# ruff: noqa: T201  The counts are what `make soak` is run for.

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest
from ordeal import LONG, SHORT, Answer, Call, Note, Ordeal, Stub, well
from redis.exceptions import RedisError
from serving import Process
from waiting import until

from credhook.receiver.inbox.inbox import Unavailable
from credhook.sandbox.local.local_redis import free_port, start_server

#: Events that one of the processes has under way.
CONCURRENCY = 10
SIZES = [
    pytest.param(SHORT, id=SHORT),
    pytest.param(LONG, id=LONG, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)]),
]

COMPLETED = "openid4vc.issuance.completed"
DATA = "openid4vc.verification.data"

TWO_HANDLERS = """
async def run(name, event, context):
    note("begin", name, event.webhook_id, context.idempotency_key, os.getpid())
    await asyncio.sleep(random.uniform(0.02, 0.15))
    note("end", name, event.webhook_id, context.idempotency_key, os.getpid())

@handlers.on("*")
async def first(event, context):
    await run("first", event, context)

@handlers.on("*")
async def second(event, context):
    await run("second", event, context)
"""

HELD = """
@handlers.on("*")
async def held(event, context):
    note("begin", event.webhook_id, os.getpid())
    while not (here / "go").exists():
        await asyncio.sleep(0.05)
"""


class MortalRedis:
    """A Redis that keeps what it confirmed, whatever happens to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.start()

    def start(self) -> None:
        self._server = start_server(self._folder, self._port)

    def kill(self) -> None:
        self._server.kill()
        self._server.wait()


@contextmanager
def mortal_redis(folder: Path) -> Iterator[MortalRedis]:
    redis = MortalRedis(folder)
    try:
        yield redis
    finally:
        redis.kill()


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub().running() as stub:
        yield stub


@pytest.fixture
def ordeal(tmp_path: Path, redis_url: str, stub: Stub) -> Iterator[Ordeal]:
    ordeal = Ordeal(tmp_path, redis_url, stub)
    yield ordeal
    ordeal.redis.close()


def children(process: Process) -> list[int]:
    pid = process.process.pid
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@dataclass
class Deaths:
    """Events without end, at least so many, until workers and Redis have died so many times.

    Attributes:
        count: events at least.
        of_workers: how often a worker process or a whole fleet is to be killed.
        of_redis: how often Redis is.
        supplied: the webhook-ids that were accepted.
        fleets: two supervisors, two worker processes each.
        died: process → when it was killed.
        whole: how many fleets were killed with their supervisor.
    """

    ordeal: Ordeal
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
            self.ordeal.started(*self.fleets, each=2)
            due = time.monotonic() + 0.5
            while len(self.supplied) < self.count or todo:
                self._supply()
                if todo and time.monotonic() >= due:
                    self._kill(todo.pop())
                    due = time.monotonic() + random.uniform(0.2, 1.0)
                time.sleep(0.01)
            self.ordeal.settles(within=600)
        finally:
            for fleet in self.fleets:
                fleet.kill()

    def _start(self, number: int) -> Process:
        # Ten events die with each process. What ends while the mark of another is on its way to Redis is what a death
        # repeats: with thousands of ends a second it would be more than one for each.
        return self.ordeal.fleet(f"fleet{number}", "--processes", "2", CREDHOOK_CONCURRENCY=str(CONCURRENCY))

    def _supply(self) -> None:
        """Keep the queue from running dry."""
        try:
            if self.ordeal.redis.llen("rq:queue:credhook") < 200:
                start = len(self.supplied)
                new = [f"m{number:06}" for number in range(start, start + 50)]
                self.ordeal.accept(*((one, DATA if one[-1] in "37" else COMPLETED, f"pre_{one}") for one in new))
                self.supplied += new
        except (RedisError, Unavailable, OSError):
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


@dataclass(frozen=True)
class Runs:
    """What the notes say of all runs of both handlers.

    Attributes:
        missing: handlers of an event that never ran to the end.
        too_late: runs that began after the mark of being done.
        repeated: runs that began after one of the same had ended well: when that one ended, and in which process.
        restarted: all runs that were not the first of theirs.
        keys: whether every run had the idempotency key of its handler and event.
    """

    missing: int
    too_late: int
    repeated: list[tuple[float, int]]
    restarted: int
    keys: bool

    @classmethod
    def read(cls, notes: list[Note], records: dict[str, dict[str, str]]) -> "Runs":
        begins: dict[tuple[str, str], list[float]] = defaultdict(list)
        ends: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        keys = True
        for note in notes:
            what, name, webhook_id, key, process = note.words
            keys &= key == f"{webhook_id}:test.{name}"
            if what == "begin":
                begins[name, webhook_id].append(note.at)
            else:
                ends[name, webhook_id].append((note.at, int(process)))
        marked = {("first", one): min(begins["second", one]) for one in records if begins["second", one]}
        marked |= {("second", one): (int(records[one].get("settled", 0)) + 1) / 1000 for one in records}
        return cls(
            missing=sum(not ends[run] for run in product(("first", "second"), records)),
            too_late=sum(at > marked[run] for run, times in begins.items() for at in times),
            repeated=[
                min(ends[run]) for run, times in begins.items() for at in times if ends[run] and (at,) > min(ends[run])
            ],
            restarted=sum(len(times) - 1 for times in begins.values() if times),
            keys=keys,
        )


@pytest.mark.parametrize("size", SIZES)
def test_workers_and_redis_killed_at_random_instants(tmp_path: Path, stub: Stub, size: str) -> None:
    stub.takes = 0.02
    with mortal_redis(tmp_path) as redis:
        ordeal = Ordeal(tmp_path, redis.url, stub)
        ordeal.plugin(TWO_HANDLERS)
        deaths = Deaths(ordeal, redis, *((600, 6, 2) if size == SHORT else (20_000, 50, 10)))
        deaths.run()
        records = ordeal.records(deaths.supplied)
        ordeal.redis.close()
    lost = sum(one.get("state") != "done" for one in records.values())
    runs = Runs.read(ordeal.notes(), records)
    print(
        f"\n{len(records)} events, kill -9 of {len(deaths.died)} worker processes ({deaths.whole} times a whole fleet) "
        f"and {deaths.of_redis} times of Redis: lost {lost}, handlers started after their done mark {runs.too_late}, "
        f"ended well and run again {len(runs.repeated)}, restarted in all {runs.restarted}"
    )
    assert (lost, runs.missing, runs.too_late) == (0, 0, 0)
    assert runs.keys
    # A kill repeats what ended while its mark was on the way to Redis: in a long run less than one, on average. In a
    # short one it may hit the moment at which Redis is away, and then repeat a slot's event each.
    assert len(runs.repeated) <= len(deaths.died) * (CONCURRENCY if size == SHORT else 1)
    for ended, process in runs.repeated:
        assert 0 < deaths.died[process] - ended < 1.5
    # It would prove nothing if nothing had been under way.
    assert runs.restarted >= deaths.of_workers / 3


@pytest.mark.parametrize(("whole", "promised"), [(False, 2.0), (True, 10.0)], ids=["one process", "with its host"])
def test_what_a_dead_worker_had_in_flight_is_under_way_again_before_its_leases_lapse(
    ordeal: Ordeal, whole: bool, promised: float
) -> None:
    """With the lease as shipped: one process dies, or with its supervisor, while another worker has nothing to do."""
    del ordeal.environment["CREDHOOK_LEASE"]
    ordeal.plugin(HELD)
    ids = {f"m{number}" for number in range(100)}

    def begun(*but: int) -> dict[str, float]:
        """When each began, in whatever process that is none of these."""
        return {note.words[1]: note.at for note in ordeal.notes() if int(note.words[2]) not in but}

    with ordeal.worker("first") as first, ExitStack() as stack:
        ordeal.started(first)
        (victim,) = children(first)
        ordeal.accept(*((one, COMPLETED, f"iss_{one}") for one in ids))
        until(lambda: begun().keys() == ids, what="100 in flight")
        second = stack.enter_context(ordeal.worker("second"))
        ordeal.started(second)
        until(lambda: ordeal.redis.zcard("credhook:credhook:workers") == 2, what="both at the roll call")
        died = time.time()
        if whole:
            first.kill()
        else:
            os.kill(victim, signal.SIGKILL)
        until(lambda: begun(victim).keys() == ids, what="100 under way again")
        took = max(begun(victim).values()) - died
        (ordeal.folder / "go").touch()
        ordeal.settles()
    # The leases were not waited for, and nobody was blamed.
    assert {record.get("killed") for record in ordeal.records(ids).values()} == {None}
    told = ordeal.logs()
    assert ('"worker_missed"' in told) == whole
    assert '"events_put_back"' not in told
    print(f"\nkill -9 with 100 events in flight: all under way again after {took:.1f} s ({promised:.0f} promised)")


def test_an_attempt_that_meets_a_redis_that_is_gone_is_made_again(tmp_path: Path, stub: Stub) -> None:
    """Redis dies while the details of a second attempt are on their way, and comes back."""
    with mortal_redis(tmp_path) as redis:

        def answer(call: Call) -> Answer:
            if call.number == 2:
                redis.kill()
            return well(call)

        stub.answer = answer
        ordeal = Ordeal(tmp_path, redis.url, stub)
        ordeal.plugin("""
@handlers.on("*")
async def second_time(event, context):
    note(event.attempt)
    if event.attempt == 1:
        raise Retry(after=0.1)
""")
        ordeal.accept(("m1", COMPLETED, "iss_1"))
        with ordeal.worker() as worker:
            until(lambda: len(stub.calls) == 2, what="the second attempt")
            until(lambda: "redis_unusable" in worker.text, what="its end")
            redis.start()
            ordeal.reaches("m1", "done", within=60)
        ordeal.redis.close()


#: What a handler can do to its worker. Each of these events ends dead; what one of the others returns is as bad.
POISONS = (
    "error", "hang", "swallow", "exit", "halt", "interrupt", "cancel", "recursion", "huge", "block",
)  # fmt: skip

POISONED = """
class Halt(BaseException):
    pass

def deeper(n):
    return deeper(n + 1)

async def swallow():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@handlers.on("openid4vc.issuance.completed")
async def poisoned(event, context):
    kind = event.webhook_id.partition("_")[0]
    if kind == "error": raise ValueError("no")
    if kind == "hang": await asyncio.sleep(600)
    if kind == "swallow": await swallow()
    if kind == "exit": sys.exit(3)
    if kind == "halt": raise Halt
    if kind == "interrupt": raise KeyboardInterrupt
    if kind == "cancel": raise asyncio.CancelledError
    if kind == "recursion": deeper(0)
    if kind == "huge": raise ValueError("x" * 50_000_000)
    return "x" * 1_000_000

@handlers.on("openid4vc.issuance.completed")
def blocked(event, context):
    if event.webhook_id.startswith("block_"): time.sleep(600)
"""

MENDED = """
@handlers.on("openid4vc.issuance.completed")
async def poisoned(event, context):
    note("handled", event.webhook_id)

@handlers.on("openid4vc.issuance.completed")
def blocked(event, context):
    pass
"""


def credhook(ordeal: Ordeal, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "credhook", *arguments],
        env=ordeal.environment, cwd=ordeal.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
def test_poison_harms_nobody_else_and_can_be_replayed(ordeal: Ordeal, size: str) -> None:
    ordeal.plugin(POISONED)
    poison = [f"{kind}_1" for kind in POISONS]
    good = [f"good_{number}" for number in range(300 if size == SHORT else 10_000)]
    events = [(one, COMPLETED, f"iss_{one}") for one in (*poison, *good)]
    random.shuffle(events)
    ordeal.accept(*events)
    settings = {"CREDHOOK_HANDLER_TIMEOUT": "1", "CREDHOOK_MAX_ATTEMPTS": "2"}
    with ordeal.worker("worker", "--processes", "2", **settings) as worker:
        ordeal.settles(within=300)
        assert worker.stop() == 0
        log = worker.text
    states = {one: fields["state"] for one, fields in ordeal.records((*poison, *good)).items()}
    assert {one for one, state in states.items() if state != "done"} == set(poison)
    assert {states[one] for one in poison} == {"dead"}
    assert "worker_died" not in log
    assert "loop_blocked" not in log
    assert max(map(len, log.splitlines())) < 10_000
    assert log.count('"worker_started"') == 2
    print(f"\n10 poisonous events among {len(good)}: the others done, the 10 dead")

    ordeal.plugin(MENDED)
    assert credhook(ordeal, "events", "replay", "--state", "dead", "--yes").stdout.strip() == "replayed 10"
    with ordeal.worker("mended"):
        ordeal.settles()
    assert {fields["state"] for fields in ordeal.records(poison).values()} == {"done"}
    handled = [note.words[1] for note in ordeal.notes()]
    # One of them had been handled by this handler, and was dead for the other one's sake.
    assert sorted(handled) == sorted(set(poison) - {"block_1"})
