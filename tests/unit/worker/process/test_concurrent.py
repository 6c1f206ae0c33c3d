"""The concurrent worker: how many events it takes, and how it drains. Leases of one process."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY
from redis.exceptions import RedisError, ResponseError
from rq.suspension import WORKERS_SUSPENDED
from structlog.testing import capture_logs

from credhook.store import State
from credhook.worker.attempt.attempt import Interruption
from credhook.worker.platform.circuit import Phase
from credhook.worker.platform.limits import Allowance
from credhook.worker.process.supervisor import HAND_BACK
from credhook.worker.queue.claims import Candidates, Taken
from credhook.worker.queue.leases import Leases
from support.virtual_time import on_own_clock
from support.worker.driven_worker import NOTHING, DrivenWorker, claimed, sleeping

DRAINED = Interruption.DRAINED


def doing(*actions: Callable[[], object], then: float = 5.0) -> Callable[[], Awaitable[None]]:
    """Return a step that does these things, and then waits for so many seconds."""

    async def step() -> None:
        for action in actions:
            action()
        await asyncio.sleep(then)

    return step


def test_ended_event_leaves_its_place_within_a_limit() -> None:
    driven = DrivenWorker(*(claimed(f"m{number}") for number in range(6)), concurrency=2)
    worker, processor = driven.worker, driven.processor
    counts = list[tuple[int, int]]()

    async def count() -> None:
        await asyncio.sleep(5)
        counts.append((len(processor.attempts), worker.announced["in_flight"]))

    assert driven.works(count, doing(processor.may_end.set), count, doing(processor.may_settle.set), count)
    assert counts == [(2, 2), (4, 0), (6, 0)]


def test_rqs_record_counts_each_event_that_is_done_once() -> None:
    driven = DrivenWorker(claimed("m1", "m2"), claimed("m3"))
    driven.processor.may_end.set()
    driven.processor.may_settle.set()
    driven.processor.state = State.DONE
    worker: Any = driven.worker

    def damage() -> None:
        driven.redis.hset(worker.key, "successful_job_count", "no number")
        with pytest.raises(ResponseError):
            worker.show_to_rq()
        driven.redis.hset(worker.key, "successful_job_count", 0)

    driven.works(doing(damage, *[worker.show_to_rq] * 3))
    worker.refresh()
    assert worker.successful_job_count == 3


def test_event_that_is_not_done_is_not_counted() -> None:
    driven = DrivenWorker(claimed("m1"))
    driven.processor.may_end.set()
    driven.processor.may_settle.set()
    worker: Any = driven.worker
    driven.works(doing(worker.show_to_rq))
    worker.refresh()
    assert (len(driven.processor.attempts), worker.successful_job_count) == (1, 0)


def test_event_that_follows_knows_the_details_and_is_interrupted() -> None:
    driven = DrivenWorker(claimed("first"), grace=0.05)
    processor = driven.processor
    processor.following = ["second"]
    processor.may_settle.set()
    details: Any = "its details"

    def fetch() -> None:
        processor.attempts[0].fetched = details
        processor.may_end.set()

    driven.works(doing(fetch, then=1), doing(driven.signal, then=1), doing(processor.may_end.set))
    first, second = processor.attempts
    assert (first.interruption, second.interruption, second.known) == (None, DRAINED, details)


def test_drain_ends_although_an_interrupted_event_does_not() -> None:
    driven = DrivenWorker(claimed("held"), grace=1.0)
    assert driven.works()
    assert driven.seconds == pytest.approx(6.0, abs=0.1)  # Its grace time, and five seconds to settle.


@pytest.mark.parametrize("why", ["stopping", "suspended", "isolated", "platform paused", ""])
def test_event_follows_only_where_one_would_be_taken(why: str) -> None:
    driven = DrivenWorker(claimed("first"), candidates=Candidates.ONLY if why == "isolated" else Candidates.NONE)
    driven.processor.may_settle.set()
    driven.breaker.pause_seconds = 9.0 if why == "platform paused" else 0.0

    def change() -> None:
        if why == "suspended":
            driven.redis.set(WORKERS_SUSPENDED, 1)
            driven.worker.show_to_rq()
        elif why == "stopping":
            driven.signal()

    driven.works(doing(change, then=1), doing(driven.processor.may_end.set))
    assert driven.processor.follows == [not why]


def test_drain_interrupts_events_when_the_grace_ends() -> None:
    driven = DrivenWorker(claimed("first", "second"), grace=0.05)
    under_way = list[int]()
    count = doing(lambda: under_way.append(driven.worker.announced["in_flight"]), then=0)
    driven.processor.may_settle.set()
    driven.works(doing(driven.signal, then=1), count, doing(driven.processor.may_end.set, then=0))
    assert [attempt.interruption for attempt in driven.processor.attempts] == [DRAINED] * 2
    assert under_way == [2]
    assert driven.seconds == pytest.approx(1.0, abs=0.1)  # It waits for events that end.


@pytest.mark.parametrize("handed_back", [True, False])
def test_take_that_outlasts_the_grace_leaves_none_to_its_events(*, handed_back: bool) -> None:
    driven = DrivenWorker(claimed("late"), grace=3_600 if handed_back else 60)
    driven.claims.takes_seconds = 100
    # The second stop gives no grace anew.
    signals = [signal.SIGTERM, HAND_BACK, signal.SIGTERM] if handed_back else [signal.SIGTERM]
    driven.works(*(doing(lambda number=number: driven.signal(number), then=0.1) for number in signals), sleeping(101))  # type: ignore[misc]
    assert [attempt.interruption for attempt in driven.processor.attempts] == [DRAINED]
    assert driven.seconds == pytest.approx(105, abs=0.5)


def test_take_passes_the_platforms_limits_on() -> None:
    driven = DrivenWorker(claimed("m1"), grace=1)
    driven.works()
    assert driven.claims.takes[0] == {"candidates": Candidates.NONE, "platform": "the platform's limits"}
    assert driven.breaker.claims[0] == (1, Allowance())


def test_attempt_that_fails_by_a_defect_frees_its_place() -> None:
    driven = DrivenWorker(claimed("m1"), claimed("m2"), concurrency=1)
    driven.processor.errors = [ValueError()]
    driven.processor.may_settle.set()
    driven.processor.may_end.set()
    with capture_logs() as logs:
        driven.works(sleeping(3))
    assert len(driven.processor.attempts) == 2
    assert [line["event"] for line in logs] == ["attempt_failed", "worker_draining"]


def test_poison_candidates_hold_up_no_other_event() -> None:
    driven = DrivenWorker(claimed("m1", poison_candidates=True), *[claimed("m", poison_candidates=True)] * 3, grace=1)
    driven.works()
    assert len(driven.processor.attempts) == 4
    assert driven.reports == 4


def test_burst_waits_for_the_poison_candidates() -> None:
    driven = DrivenWorker(*[Taken((), None, poison_candidates=True)] * 3)
    assert driven.works(burst=True)
    assert len(driven.claims.limits) == 4


def test_isolated_worker_stops_when_no_candidate_is_left() -> None:
    blocked = Taken((), None, poison_candidates=True)
    driven = DrivenWorker(claimed("m1", poison_candidates=True), blocked, concurrency=1, candidates=Candidates.ONLY)
    driven.processor.state = State.DONE
    driven.processor.may_end.set()
    driven.processor.may_settle.set()
    assert driven.works(sleeping(9))
    assert (len(driven.processor.attempts), driven.reports) == (1, 0)
    assert driven.claims.waits == []  # Jobs of other events would end such a wait at once.
    assert len(driven.claims.limits) == 3
    assert {take["candidates"] for take in driven.claims.takes} == {Candidates.ONLY}


def test_isolated_worker_stops_after_a_candidate_that_met_a_defect() -> None:
    driven = DrivenWorker(*[claimed("m", poison_candidates=True)] * 3, concurrency=1, candidates=Candidates.ONLY)
    driven.processor.errors = [ValueError()]
    driven.processor.may_settle.set()
    driven.processor.may_end.set()
    driven.works()
    assert len(driven.processor.attempts) == 1


def test_isolated_worker_stops_after_a_candidate_that_is_not_done() -> None:
    """It may have left a timer that ends the process, and the next candidate would be blamed."""
    driven = DrivenWorker(*[claimed("m", poison_candidates=True)] * 3, concurrency=1, candidates=Candidates.ONLY)
    driven.processor.may_end.set()
    driven.processor.may_settle.set()
    assert driven.works(sleeping(9))
    assert len(driven.processor.attempts) == 1


@pytest.mark.parametrize(
    ("taken", "error", "event"),
    [
        (RedisError("away"), None, "redis_unusable"),
        (ValueError(), None, "take_failed"),
        (NOTHING, RedisError("not BLMOVE"), "redis_unusable"),
    ],
)
def test_take_or_wait_that_fails_is_tried_again(taken: Taken | Exception, error: Exception | None, event: str) -> None:
    driven = DrivenWorker(*[taken] * 20)
    driven.claims.wait_error = error
    with capture_logs() as lines:
        driven.works(sleeping(30))
    assert 3 < len(driven.claims.limits) <= 20  # Not a hundred times a second.
    assert {line["event"] for line in lines} == {event, "worker_draining"}


@pytest.mark.parametrize(
    ("retry_in", "due", "wait", "places", "group", "takes"),
    [(0.05, None, 1.0, 8, 2, 3), (60.0, 0.25, 0.25, 3, 1, 5), (0.0, 60.0, 1.0, 9, 2, 3)],
)
def test_idle_worker_takes_groups_once_it_may_and_waits(
    retry_in: float, due: float | None, wait: float, places: int, group: int, takes: int
) -> None:
    driven = DrivenWorker(*[Taken((), due)] * 20, concurrency=places)
    driven.breaker.refusals, driven.breaker.retry_seconds = 1, retry_in
    driven.works(sleeping(2.09))
    assert (driven.claims.limits, set(driven.claims.waits)) == ([group] * takes, {wait})


def test_worker_looks_at_itself_twice_a_second() -> None:
    driven = DrivenWorker(claimed("m1"), grace=1)
    driven.processor.runs = SimpleNamespace(hung=3, limit=2, are_too_many=False)
    driven.breaker.credential_error, driven.breaker.phase = "refused", Phase.OPEN
    driven.processor.waits = {"test.limited": (3, 27.5)}
    announced = list[dict[str, Any]]()
    gauges = ("handlers_hung", "events_in_flight", "platform_breaker")
    values = list[float | None]()

    def look() -> None:
        announced.append(driven.worker.announced)
        values.extend(REGISTRY.get_sample_value(f"credhook_{gauge}") for gauge in gauges)

    def close() -> None:
        driven.breaker.credential_error, driven.breaker.phase = "", Phase.CLOSED

    assert driven.works(sleeping(1.2), doing(look, then=0), doing(close, then=0), sleeping(1), doing(look, then=0))
    refused, accepted = announced
    assert refused == {
        "in_flight": 1,
        "started": True,
        "credential_error": "refused",
        "breaker": "open",
        "breaker_seconds": 1.0,
        "never_found": (),
        "turns": {"test.limited": (3, 27.5)},
    }
    assert accepted == refused | {"credential_error": "", "breaker": "closed", "breaker_seconds": 0.0}
    assert values == [3, 1, 1, 3, 1, 0]
    # Plugins start, then it takes events, and at last plugins shut down.
    assert (driven.watched[:1], driven.watched[-1:]) == ([True], [True])
    assert driven.watched[1:-1] == [False] * (len(driven.watched) - 2)


def test_worker_with_too_many_hanging_handlers_ends_to_be_replaced() -> None:
    driven = DrivenWorker(claimed("m1"), grace=1)
    driven.processor.runs = SimpleNamespace(hung=3, limit=2, are_too_many=False)

    def hang() -> None:
        driven.processor.runs.are_too_many = True

    with capture_logs() as logs:
        assert not driven.works(doing(hang, then=10))
    assert [line["event"] for line in logs] == ["handlers_hung", "worker_draining"]


@pytest.mark.parametrize("has_started", [True, False])
def test_worker_counts_as_started_once_every_start_up_has_succeeded(*, has_started: bool) -> None:
    driven, announced = DrivenWorker(), list[bool]()
    driven.has_started = has_started
    assert driven.works(sleeping(1), doing(lambda: announced.append(driven.worker.announced["started"]), then=0))
    assert announced == [has_started]


def test_stopped_worker_waits_for_no_start_up() -> None:
    driven = DrivenWorker()
    driven.starting = asyncio.Event().wait  # type: ignore[assignment]
    driven.works(sleeping(1))
    assert driven.seconds == pytest.approx(1, abs=0.1)


def test_breaker_hears_how_many_events_may_still_fetch() -> None:
    driven = DrivenWorker(claimed("m1", "m2", "m3"), grace=1)

    def fetch() -> None:
        driven.processor.attempts[0].calls_platform = True

    driven.works(doing(fetch, then=2))
    assert (driven.breaker.unfetched[0], driven.breaker.unfetched[-1]) == (0, 2)


@pytest.mark.parametrize(("allowance", "takes"), [(Allowance(wait=0.5, limited=True), 5), (Allowance(pause=60.0), 3)])
def test_worker_waits_until_the_platform_may_be_called(allowance: Allowance, takes: int) -> None:
    """Jobs are in the queue, so a wait for a job would end at once."""
    driven = DrivenWorker(*[Taken((), None, allowance=allowance)] * 20)
    driven.works(sleeping(2.09))
    assert (len(driven.claims.limits), driven.claims.waits) == (takes, [])


def test_burst_does_not_end_during_a_pause() -> None:
    driven = DrivenWorker(*[Taken((), None, allowance=Allowance(pause=60.0))] * 3)
    assert driven.works(burst=True)
    assert len(driven.claims.limits) == 4


def test_event_that_is_taken_again_ends_the_older_attempt() -> None:
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


@on_own_clock
async def test_lease_is_renewed_four_times_while_it_lasts() -> None:
    held: Any = [SimpleNamespace(event_id="e1"), SimpleNamespace(event_id="e2")]
    asked, lost = list[list[Any]](), list[str]()

    async def renew(claims: list[Any]) -> list[Any]:
        asked.append(claims)
        if len(asked) == 4:
            leases.release(held[1])  # Settled while it was renewed: nobody is to hear that it was lost.
        return held[len(asked) - 3 :][:1] if len(asked) >= 3 else []

    leases = Leases(cast(Any, SimpleNamespace(lease=15.0, renew=renew)))
    for one in held:
        leases.hold(one, lambda one=one: lost.append(one.event_id))  # type: ignore[misc]
    with suppress(TimeoutError):
        await asyncio.wait_for(leases.keep(), 15.1)
    assert (asked, lost) == ([held, held, held, held[1:]], ["e1"])


@on_own_clock
async def test_lease_counts_from_the_request_for_its_renewal() -> None:
    claim, lost, answers = cast(Any, SimpleNamespace(event_id="e1")), list[str](), iter([[], *[RedisError("away")] * 2])

    async def renew(_: object) -> Any:
        if isinstance(answer := next(answers), RedisError):
            raise answer
        return await asyncio.sleep(4.0, answer)

    leases = Leases(cast(Any, SimpleNamespace(lease=10.0, renew=renew)), clock=asyncio.get_running_loop().time)
    leases.hold(claim, lambda: lost.append("e1"))
    with capture_logs() as logs:
        # Asked for at 8, answered at 12: it lasts until 18.
        for seconds, over in ((8.0, []), (5.5, []), (0.5, ["e1"])):
            await asyncio.sleep(seconds)
            await leases.renew()
            assert lost == over
    assert [(line["event"], line["held"]) for line in logs] == [("leases_not_renewed", 1)] * 2
