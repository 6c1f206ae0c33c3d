"""The concurrent worker: how many events it takes, whose leases it renews, and how it drains."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import RedisError
from waiting import until_async

from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.attempt.slots import Slot, Slots
from credhook.worker.process.concurrent import ConcurrentWorker
from credhook.worker.queue.claims import Taken

NOTHING: Any = None


class Processor:
    """Ends each attempt when it may, and with the event that follows it.

    Attributes:
        follows: attempt's claim → the claim that follows.
        kept: the claims whose leases are renewed, in order.
        asked: whether each attempt was to go on with the event that follows.
        may_end: set once the attempts may end.
    """

    def __init__(self) -> None:
        self.follows: dict[str, str] = {}
        self.kept: list[str] = []
        self.asked: list[bool] = []
        self.may_end = asyncio.Event()

    def keep(self, attempt: Attempt) -> None:
        self.kept.append(str(attempt.claim))

    async def handle(self, attempt: Attempt, slot: Any, *, may_follow: Callable[[], bool]) -> tuple[None, str | None]:
        async with slot:
            if attempt.interruption is None:
                await self.may_end.wait()
        self.asked.append(may_follow())
        return None, self.follows.get(str(attempt.claim))


def worker(concurrency: int, processor: Processor, *, grace: float = 60.0) -> Any:
    """Return a worker without Redis, whose claims are strings."""
    made = cast(Any, ConcurrentWorker.__new__(ConcurrentWorker))
    settings: Any = SimpleNamespace(concurrency=concurrency, grace=grace)
    made._settings, made._concurrency = settings, concurrency
    made._attempts, made._tasks = set(), set()
    made._slots, made._processor = Slots(concurrency, lambda: Slot(NOTHING, NOTHING, NOTHING)), processor
    made._freed, made._stopping = asyncio.Event(), asyncio.Event()
    made._suspended = made._isolation_wanted = False
    made._breaker = SimpleNamespace(pause=lambda: 0.0)
    return made


def started(one: Any, claim: str) -> Attempt:
    """Start an attempt at the claim and return it."""
    one._start(claim)
    attempts: set[Attempt] = one._attempts
    return next(each for each in attempts if str(each.claim) == claim)


async def test_the_lease_of_an_event_that_follows_is_renewed_while_it_waits_for_a_slot() -> None:
    processor = Processor()
    one = worker(1, processor)
    processor.follows["first"] = "follower"
    for each in ("first", "other"):
        one._start(each)
    await until_async(lambda: one._slots._waiting, what="the other, which waits")
    processor.may_end.set()
    await asyncio.sleep(0)
    processor.may_end.clear()
    await until_async(lambda: "follower" in processor.kept, what="a lease that is kept")
    assert [str(waiting.attempt.claim) for waiting in one._slots._waiting] == ["follower"]
    assert "follower" in {str(each.claim) for each in one._attempts}  # A drain can interrupt it.
    processor.may_end.set()
    await one._drain()


@pytest.mark.parametrize("why", ["stopping", "suspended", "poison candidate", "platform paused", ""])
async def test_no_event_follows_where_none_would_be_taken(why: str) -> None:
    processor = Processor()
    processor.may_end.set()
    one = worker(1, processor)
    one._suspended, one._isolation_wanted = why == "suspended", why == "poison candidate"
    one._breaker = SimpleNamespace(pause=lambda: 9.0 if why == "platform paused" else 0.0)
    if why == "stopping":
        one._stopping.set()
    one._start("first")
    await one._drain()
    assert processor.asked == [not why]


async def test_a_drain_hands_back_at_once_what_waits_for_a_slot_and_lets_the_others_finish() -> None:
    processor = Processor()
    one = worker(1, processor)
    held, late = started(one, "held"), started(one, "late")
    await until_async(lambda: one._slots._waiting)
    draining = asyncio.create_task(one._drain())
    await until_async(lambda: len(one._tasks) == 1, what="the end of the waiting attempt")
    assert (late.interruption, held.interruption) == (Interruption.DRAINED, None)
    assert not draining.done()
    processor.may_end.set()
    await draining
    assert held.interruption is None


async def test_a_drain_breaks_off_what_its_grace_does_not_suffice_for() -> None:
    processor = Processor()
    one = worker(1, processor, grace=0.05)
    held = started(one, "held")
    draining = asyncio.create_task(one._drain())
    await until_async(lambda: held.interruption is Interruption.DRAINED)
    processor.may_end.set()
    await draining


async def test_what_passed_between_the_stop_and_the_drain_is_a_part_of_the_grace() -> None:
    processor = Processor()
    one = worker(1, processor, grace=3_600)
    held = started(one, "held")
    one._stop()
    one._stopped_at -= 3_600
    draining = asyncio.create_task(one._drain())
    await until_async(lambda: held.interruption is Interruption.DRAINED)
    processor.may_end.set()
    await draining


async def test_nothing_is_taken_once_it_is_to_stop() -> None:
    one = worker(4, Processor())
    assert one._room() == 4
    one._stop()
    assert one._room() == 0


class Queue:
    """Claims and breaker in one: answers each take with `taken`, and records how many are given back."""

    def __init__(self, taken: Taken | Exception) -> None:
        self.taken = taken
        self.asked: list[int] = []
        self.returned: list[int] = []

    async def admit(self, wanted: int) -> int:
        return wanted

    async def wait_for_job(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def take(self, wanted: int, *, idle: bool) -> Taken:
        self.asked.append(wanted)
        if isinstance(self.taken, Exception):
            raise self.taken
        return self.taken

    async def give_back(self, unused: int) -> None:
        self.returned.append(unused)
        raise RedisError("away")


def taking(taken: Taken | Exception) -> tuple[Any, Queue, list[tuple[Any, bool]]]:
    """Return a worker on such a queue, and the claims that it starts, each with its `_isolation_wanted`."""
    one, queue = worker(4, Processor()), Queue(taken)
    started: list[tuple[Any, bool]] = []
    one._claims = one._breaker = queue
    one._start = lambda claim: started.append((claim, one._isolation_wanted))
    return one, queue, started


@pytest.mark.parametrize(("waiting", "taken_one"), [(True, False), (False, True), (False, False)])
async def test_that_a_poison_candidate_must_be_alone_is_known_before_anything_starts(
    *, waiting: bool, taken_one: bool
) -> None:
    claim: Any = SimpleNamespace(poison_candidate=taken_one)
    one, queue, started = taking(Taken((claim,), None, waiting))
    await one._take(4, idle=True)
    assert started == [(claim, waiting or taken_one)]
    assert (queue.asked, queue.returned) == ([4], [3])  # Although the breaker had no Redis.


async def test_nothing_is_taken_beside_a_poison_candidate() -> None:
    one, queue, _ = taking(Taken((), None))
    one._tasks, one._isolation_wanted = {NOTHING}, True
    running = asyncio.create_task(one._take_and_start(burst=False))
    for _ in range(20):
        await asyncio.sleep(0)
    assert queue.asked == []
    one._tasks.clear()
    one._freed.set()
    await until_async(lambda: queue.asked, what="a take once it has ended")
    one._stop()
    await running


async def test_a_worker_that_was_told_to_stop_while_it_asked_the_breaker_takes_nothing() -> None:
    one, queue, started = taking(Taken((NOTHING,), None))
    one._stopping.set()
    await one._take(4, idle=True)
    assert (queue.asked, queue.returned, started) == ([], [4], [])
