"""The concurrent worker: how many events it takes, and how it drains. Leases of one process."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from prometheus_client import REGISTRY
from redis.exceptions import RedisError
from structlog.testing import capture_logs

from credhook.store import State
from credhook.worker.attempt.attempt import Attempt, Interruption
from credhook.worker.platform.circuit import Phase
from credhook.worker.platform.limits import Allowance
from credhook.worker.process.concurrent import ConcurrentWorker
from credhook.worker.queue.claims import Taken
from credhook.worker.queue.leases import Leases
from credhook.worker.wiring import _restarted
from support.virtual_time import in_own_time
from support.waiting import until_async


class Processor:
    """Ends each attempt when it may, and lets it wait when it may. Each of the `following` events has to wait anew."""

    def __init__(self, *following: str) -> None:
        self.asked: list[bool] = []
        self.following = list(following)
        self.may_end, self.may_settle = asyncio.Event(), asyncio.Event()

    async def handle(
        self, attempt: Attempt, *, handled: Callable[[Attempt], None], may_follow: Callable[[], bool]
    ) -> tuple[Any, str | None]:
        await self.may_end.wait()
        handled(attempt)
        self.asked.append(may_follow())
        await self.may_settle.wait()
        if not self.following:
            return SimpleNamespace(state=State.WAITING), None
        self.may_end.clear()
        return None, self.following.pop()


def worker(concurrency: int, processor: Processor, *, grace: float = 60.0) -> Any:
    """Return a worker without Redis, whose claims are strings."""
    made = cast(Any, ConcurrentWorker.__new__(ConcurrentWorker))
    made._settings = SimpleNamespace(concurrency=concurrency, grace=grace)
    made._attempts, made._tasks, made._finished, made._processor = set(), set(), 0, processor
    made._freed, made._stopping = asyncio.Event(), asyncio.Event()
    made._suspended = made._isolation_wanted = False
    made._breaker = SimpleNamespace(pause=lambda: 0.0, phase=Phase.OPEN)
    return made


async def test_an_event_that_is_settled_leaves_its_place_to_another_but_not_without_a_limit() -> None:
    processor = Processor()
    one = worker(2, processor)
    for each in ("first", "second"):
        one._start(each)
    assert one._room() == 0
    processor.may_end.set()
    await until_async(lambda: len(processor.asked) == 2)
    assert one._room() == 2
    for each in ("third", "fourth"):
        one._start(each)
    await until_async(lambda: len(processor.asked) == 4)
    assert one._room() == 0
    processor.may_settle.set()
    await one._drain()
    assert (one._room(), one._finished) == (2, 0)


async def test_the_event_that_follows_is_under_way_and_is_interrupted_as_well() -> None:
    processor = Processor("second")
    one = worker(1, processor, grace=0.05)
    one._start("first")
    (first,) = one._attempts
    first.fetched = "its details"
    processor.may_end.set()
    processor.may_settle.set()
    await until_async(lambda: processor.following == [] and one._attempts != set())
    (second,) = one._attempts - {first}
    assert second.known == "its details"
    one._stop()
    draining = asyncio.create_task(one._drain())
    await until_async(lambda: second.interruption is Interruption.DRAINED)
    processor.may_end.set()
    await draining


def test_a_drain_ends_although_an_interrupted_event_does_not() -> None:
    async def work() -> None:
        one = worker(1, Processor(), grace=1.0)
        one._start("held")
        one._stop()
        await asyncio.wait_for(one._drain(), 6.1)  # Its grace time, and five seconds to settle.

    in_own_time(work())


@pytest.mark.parametrize("why", ["stopping", "suspended", "poison candidate", "platform paused", ""])
async def test_no_event_follows_where_none_would_be_taken(why: str) -> None:
    processor = Processor()
    processor.may_end.set()
    processor.may_settle.set()
    one = worker(1, processor)
    one._suspended, one._isolation_wanted = why == "suspended", why == "poison candidate"
    one._breaker = SimpleNamespace(pause=lambda: 9.0 if why == "platform paused" else 0.0)
    if why == "stopping":
        one._stopping.set()
    one._start("first")
    await one._drain()
    assert processor.asked == [not why]


@pytest.mark.parametrize(
    ("grace", "passed", "handed_back"),
    [
        pytest.param(0.05, 0, False, id="over"),
        pytest.param(3_600, 3_600, False, id="over before the drain"),
        pytest.param(3_600, 0, True, id="started after the others were handed back"),
    ],
)
async def test_a_drain_interrupts_the_events_for_which_the_grace_does_not_suffice(
    grace: float, passed: float, handed_back: bool
) -> None:
    processor = Processor()
    processor.may_settle.set()
    one = worker(2, processor, grace=grace)
    one._stop()
    if handed_back:
        one._interrupt_all()
        one._stop()  # It gets no grace time anew.
    for held in ("first", "second"):
        one._start(held)
    one._drained_by -= passed
    draining = asyncio.create_task(one._drain())
    await until_async(lambda: {held.interruption for held in one._attempts} == {Interruption.DRAINED})
    one._tasks.copy().pop().cancel()
    await asyncio.wait({draining}, timeout=0.05)
    assert len(one._tasks) == 1
    assert not draining.done()
    processor.may_end.set()
    await draining


def told(method: AsyncMock) -> list[Any]:
    """Return the first argument of each of its calls."""
    return [call.args[0] for call in method.await_args_list]


def taking(*taken: Taken | Exception) -> tuple[Any, AsyncMock, list[tuple[Any, bool]]]:
    """Return a worker, its claims, and the claims that it starts, with their `_isolation_wanted`."""
    one, queue = worker(4, Processor()), AsyncMock()
    queue.wait_for_job.side_effect = asyncio.sleep
    queue.take.side_effect = cycle(taken)
    started: list[tuple[Any, bool]] = []
    one._claims, one._breaker = queue, Mock()
    one._breaker.allows.side_effect = lambda wanted, **_: wanted
    one._start = lambda claim: started.append((claim, one._isolation_wanted))
    return one, queue, started


@pytest.mark.parametrize(("waiting", "taken_one"), [(True, False), (False, True), (False, False)])
async def test_that_a_poison_candidate_must_be_alone_is_known_before_anything_starts(
    *, waiting: bool, taken_one: bool
) -> None:
    claim: Any = SimpleNamespace(poison_candidate=taken_one)
    one, queue, started = taking(Taken((claim,), None, waiting))
    one._breaker.for_claims.return_value = "the platform's limits"
    await one._take(4, idle=True)
    assert started == [(claim, waiting or taken_one)]
    queue.take.assert_awaited_once_with(4, idle=True, platform="the platform's limits")
    one._breaker.claimed.assert_called_once_with(1, Allowance())


async def test_nothing_is_taken_beside_a_poison_candidate() -> None:
    one, queue, _ = taking(Taken((), None))
    held = asyncio.get_running_loop().create_future()
    held.set_exception(ValueError())
    one._tasks, one._isolation_wanted = {held}, True
    running = asyncio.create_task(one._take_and_start(burst=False))
    for _ in range(20):
        await asyncio.sleep(0)
    assert told(queue.take) == []
    with capture_logs() as logs:
        one._ended(held)
    assert [line["event"] for line in logs] == ["attempt_failed"]
    await until_async(lambda: told(queue.take), what="a take once it has ended")
    one._stop()
    await running


@pytest.mark.parametrize(
    ("taken", "error", "event"),
    [
        (RedisError("away"), None, "redis_unusable"),
        (ValueError(), None, "take_failed"),
        (Taken((), None), RedisError("not BLMOVE"), "redis_unusable"),
    ],
)
def test_a_take_or_a_wait_that_fails_is_tried_again_and_again(
    taken: Taken | Exception, error: Exception | None, event: str
) -> None:
    async def work() -> None:
        one, queue, _ = taking()
        queue.take.side_effect, queue.wait_for_job.side_effect = [taken] * 20, error  # Not a hundred times a second.
        running = asyncio.create_task(one._take_and_start(burst=False))
        await asyncio.sleep(30)
        one._stop()
        await running
        assert queue.take.await_count > 3

    with capture_logs() as lines:
        in_own_time(work())
    assert {line["event"] for line in lines} == {event, "worker_draining"}


@pytest.mark.parametrize(
    ("retry_in", "due", "waits", "places", "group", "takes"),
    [(0.05, None, 1.0, 8, 2, 3), (60.0, 0.25, 0.25, 3, 1, 5), (0.0, 60.0, 1.0, 9, 2, 3)],
)
def test_an_idle_worker_takes_groups_once_they_are_allowed_and_then_waits(
    retry_in: float, due: float | None, waits: float, places: int, group: int, takes: int
) -> None:
    async def work() -> None:
        one, queue, _ = taking(Taken((), due))
        one._settings.concurrency, one._breaker.retry_in = places, lambda: retry_in
        one._breaker.allows.side_effect = lambda wanted, **_: wanted * (one._breaker.allows.call_count > 1)
        with suppress(TimeoutError):
            await asyncio.wait_for(one._take_and_start(burst=False), 2.1)
        assert (told(queue.take), set(told(queue.wait_for_job))) == ([group] * takes, {waits})

    in_own_time(work())


def test_a_worker_looks_at_itself_twice_a_second_and_stops_if_too_many_handlers_hang() -> None:
    watched, runs = list[bool](), SimpleNamespace(hung=3, limit=2, are_too_many=False)

    async def work() -> None:
        one = worker(1, Processor())
        one._processor.runs, one._breaker.credential_error, one._exhausted = runs, "refused", False
        one._attempts.add("first")
        one.started = True
        watching = asyncio.create_task(one._watch_process(watched.append))
        await asyncio.sleep(1.2)
        assert (one.credential_error, one.breaker) == ("refused", "open")
        assert (one._exhausted, one._stopping.is_set()) == (False, False)
        runs.are_too_many = True
        await asyncio.sleep(1.2)
        assert (one._exhausted, one._stopping.is_set()) == (True, True)
        watching.cancel()

    with capture_logs() as logs:
        in_own_time(work())
    assert watched == [False] * 5
    assert [line["event"] for line in logs] == ["handlers_hung", "worker_draining"]
    gauges = ("handlers_hung", "events_in_flight", "platform_breaker")
    assert [REGISTRY.get_sample_value(f"credhook_{gauge}") for gauge in gauges] == [3, 1, 1]


async def test_stopped_worker_waits_for_nothing() -> None:
    one = worker(1, Processor())
    one._stopping.set()
    await asyncio.wait_for(one._first(asyncio.Event().wait()), 60)


async def test_breaker_hears_how_many_events_may_still_fetch() -> None:
    one, queue, _ = taking(Taken((), None))
    one._attempts = {Attempt(cast(Any, None), calls_platform=fetches) for fetches in (False, True, False)}
    running = asyncio.create_task(one._take_and_start(burst=False))
    await until_async(lambda: told(queue.take), what="a take")
    one._breaker.allows.assert_called_with(1, unfetched=2)
    one._stop()
    await running


@pytest.mark.parametrize(("allowance", "takes"), [(Allowance(wait=0.5, limited=True), 5), (Allowance(pause=60.0), 3)])
def test_worker_waits_until_the_platform_may_be_called(allowance: Allowance, takes: int) -> None:
    """Jobs are in the queue, so a wait for a job would end at once."""

    async def work() -> None:
        one, queue, _ = taking(Taken((), None, allowance=allowance))
        with suppress(TimeoutError):
            await asyncio.wait_for(one._take_and_start(burst=False), 2.1)
        assert (len(told(queue.take)), told(queue.wait_for_job)) == (takes, [])

    in_own_time(work())


def test_burst_does_not_end_during_a_pause() -> None:
    async def work() -> None:
        one, queue, _ = taking(*[Taken((), None, allowance=Allowance(pause=60.0))] * 3, Taken((), None))
        await asyncio.wait_for(one._take_and_start(burst=True), 60)
        assert len(told(queue.take)) == 4

    in_own_time(work())


def test_background_work_begins_again_whatever_ends_it_and_a_defect_is_logged_each_time() -> None:
    work = AsyncMock(side_effect=[ValueError(), RedisError("away"), ValueError(), asyncio.CancelledError()])
    with capture_logs() as lines, suppress(asyncio.CancelledError):
        in_own_time(_restarted(work))
    assert work.await_count == 4
    assert [line["event"] for line in lines] == ["background_task_failed"] * 2


def test_an_event_that_is_taken_again_breaks_the_older_attempt_off() -> None:
    claims: Any = SimpleNamespace(lease=15.0)
    leases, lost = Leases(claims), []
    first, second = (cast(Any, SimpleNamespace(event_id="e1")) for _ in range(2))
    leases.hold(first, lambda: lost.append("first"))
    assert lost == []
    leases.hold(second, lambda: lost.append("second"))
    assert lost == ["first"]
    leases.release(first)
    leases.hold(first, lambda: None)
    assert lost == ["first", "second"]


def test_a_lease_is_renewed_four_times_while_it_lasts_until_it_is_lost() -> None:
    held: Any = [SimpleNamespace(event_id="e1"), SimpleNamespace(event_id="e2")]
    asked, lost = list[list[Any]](), list[str]()

    async def renew(claims: list[Any]) -> list[Any]:
        asked.append(claims)
        if len(asked) == 4:
            leases.release(held[1])  # Settled while it was renewed: nobody is to hear that it was lost.
        return held[len(asked) - 3 :][:1] if len(asked) >= 3 else []

    leases = Leases(cast(Any, SimpleNamespace(lease=15.0, renew=renew)))

    async def work() -> None:
        for one in held:
            leases.hold(one, lambda one=one: lost.append(one.event_id))  # type: ignore[misc]
        with suppress(TimeoutError):
            await asyncio.wait_for(leases.keep(), 15.1)

    in_own_time(work())
    assert (asked, lost) == ([held, held, held, held[1:]], ["e1"])


def test_a_lease_counts_from_the_request_for_its_renewal() -> None:
    claim, lost, answers = cast(Any, SimpleNamespace(event_id="e1")), list[str](), iter([[], *[RedisError("away")] * 2])

    async def renew(_: object) -> Any:
        if isinstance(answer := next(answers), RedisError):
            raise answer
        return await asyncio.sleep(4.0, answer)

    async def work() -> None:
        leases = Leases(cast(Any, SimpleNamespace(lease=10.0, renew=renew)), clock=asyncio.get_running_loop().time)
        leases.hold(claim, lambda: lost.append("e1"))
        # Asked for at 8, answered at 12: it lasts until 18.
        for seconds, over in ((8.0, []), (5.5, []), (0.5, ["e1"])):
            await asyncio.sleep(seconds)
            await leases.renew()
            assert lost == over

    in_own_time(work())
