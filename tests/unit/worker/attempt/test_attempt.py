"""An attempt by itself: what it comes to, how it is broken off, its handlers, and which failures have one cause."""

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from credhook import InvalidRequest
from credhook.store import Schedule, State
from credhook.worker.api.errors import Unavailable
from credhook.worker.attempt.attempt import Attempt, Interruption, distribution, failure_of
from credhook.worker.attempt.details import Fetched, Snapshots
from credhook.worker.attempt.processor import Clients, Processor
from credhook.worker.attempt.retry import ConcurrencyReached, DataGone, Defer, GiveUp, Retry
from credhook.worker.attempt.running import LOOK_AGAIN_SECONDS, HandlerTimeout
from credhook.worker.handlers.registry import Handler, Handlers, Registry
from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.queue.claims import Claim, Settlement, is_stale, later
from credhook.worker.queue.failure import Failure
from support.worker.attempts import Planned

NOW = datetime(2026, 11, 22, tzinfo=UTC)
CLAIM = Claim(
    event_id="e1",
    type="openid4vc.issuance.completed",
    resource_id="i1",
    received_at=NOW,
    now=int(NOW.timestamp() * 1_000),
    lapses=0,
    fence=1,
    first=True,
    latest=(0, 0),
    job="j1",
)


def function(event: Any, context: Any) -> None: ...


def attempt_with(*names: str, claim: Claim = CLAIM, **fields: Any) -> Attempt:
    """An attempt of a worker that has these handlers; they began a moment ago."""
    return Attempt(
        claim,
        began=time.monotonic(),
        wanted=[Handler(name, frozenset(), function) for name in names],
        dispatched=names,
        **fields,
    )


def test_event_is_due_when_its_earliest_handler_is() -> None:
    attempt = attempt_with("a.f", "a.g", "a.h")
    for name, error, wait in (("a.f", ValueError(), 9), ("a.g", KeyError(), 3), ("a.h", OSError(), 5)):
        attempt.failed(name, error, Retry(wait))
    assert attempt.settlement()[:3] == (State.WAITING, "a.g: KeyError", 3)
    assert attempt.schedules == {"a.f": (1, 9, False), "a.g": (1, 3, False), "a.h": (1, 5, False)}
    assert attempt_with("a.f").settlement().wait == LOOK_AGAIN_SECONDS  # No handler says when.


def test_handler_that_is_not_due_keeps_its_own_schedule() -> None:
    claim = CLAIM._replace(schedules={"a.f": Schedule(3, CLAIM.now + 60_000)})
    attempt = attempt_with("a.f", "a.g", claim=claim)
    attempt.failed("a.g", ValueError(), Retry(90))
    settlement = attempt.settlement()
    assert (settlement.state, settlement.until, round(settlement.wait)) == (State.WAITING, CLAIM.now + 60_000, 60)
    assert attempt.schedules == {"a.g": (1, 90, False)}


def test_event_waits_for_the_fetch_before_its_handlers() -> None:
    claim = CLAIM._replace(schedules={"fetch": Schedule(2, CLAIM.now + 30_000), "a.f": Schedule(1, CLAIM.now - 9)})
    assert attempt_with("a.f", claim=claim).settlement().until == CLAIM.now + 30_000


def test_deferral_spends_no_attempt() -> None:
    claim = CLAIM._replace(schedules={"a.f": Schedule(4), "fetch": Schedule(2)})
    attempt = attempt_with("a.f", "a.g", claim=claim)
    attempt.failed("a.f", Unavailable(""), Defer(0.4))
    attempt.failed("a.g", ValueError(), Retry(30))
    assert attempt.schedules == {"a.f": (4, 0.4, False), "a.g": (1, 30, False)}
    assert attempt.settlement().more("w")["wait"] == 400
    attempt.failed("fetch", Unavailable(""), Retry(7))
    assert (attempt.schedules["fetch"], attempt.settlement().wait) == ((3, 7, False), 7)


def test_event_is_postponed_while_its_earliest_handler_has_chosen_to_wait() -> None:
    chosen, claim = Retry(after=60), CLAIM._replace(schedules={"a.f": Schedule(1, CLAIM.now + 9_000, chosen=True)})
    attempt = attempt_with("a.f", "a.g", claim=claim)
    attempt.failed("a.g", chosen, chosen)
    assert attempt.schedules == {"a.g": (1, 60, True)}
    assert (attempt.settlement().until, attempt.settlement().chosen) == (CLAIM.now + 9_000, True)
    attempt.failed("a.g", ValueError(), Retry(2))
    assert (attempt.settlement().wait, attempt.settlement().chosen) == (2, False)


def test_event_is_dead_once_every_handler_has_ended() -> None:
    claim = CLAIM._replace(ended={"a.e": "dead: ValueError", "a.d": "done"})
    attempt = attempt_with("a.d", "a.e", "a.f", claim=claim)
    attempt.failed("a.f", OSError(), Retry(1))
    assert attempt.settlement().state is State.WAITING
    attempt.statuses["a.f"] = "dead: closed"
    assert attempt.settlement()[:2] == (State.DEAD, "a.e: ValueError")
    assert replace(attempt, missing=("b.x",)).settlement()[:2] == (State.UNHANDLED, "NoHandler")


def test_settlement_tells_the_state_that_handlers_have_seen() -> None:
    attempt = attempt_with("a.f", "a.g", claim=CLAIM._replace(first=False), version=(2, 5))
    assert attempt.settlement().latest is None
    attempt.durations["a.f"] = 3.0
    assert attempt.settlement().latest == (2, 5)
    attempt.durations.clear()
    attempt.statuses.update({"a.f": "skipped", "a.g": "skipped"})
    assert attempt.settlement().latest == (2, 5)


@pytest.mark.parametrize(
    ("state", "other", "latest", "stale"),
    [
        ((1, 500), (2, 900), (2, 900), True),
        ((2, 500), (1, 900), (1, 900), True),  # A resource can go back in rank.
        ((1, 500), (2, 500), (2, 500), True),
        ((1, 500), (2, 0), (2, 500), True),  # A time is unknown.
        ((2, 0), (1, 500), (2, 500), False),
        ((2, 500), (2, 500), (2, 500), False),
    ],
)
def test_time_of_a_state_decides_before_its_rank(
    state: tuple[int, int], other: tuple[int, int], latest: tuple[int, int], stale: bool
) -> None:
    assert later(state, other) == later(other, state) == latest
    assert is_stale(state, other) is stale


def test_event_whose_fetch_is_given_up_waits_for_no_handler() -> None:
    gone, attempt = DataGone(was_seen=True), attempt_with("a.f", "a.g", missing=("b.x",))
    attempt.failed("fetch", gone, GiveUp("DataGone"))
    attempt.failed("a.g", OSError(), Retry(1))
    assert attempt.settlement()[:2] == (State.DATA_GONE, "DataGone")


@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("why", [Interruption.DRAINED, None])
async def test_interruption_ends_with_its_attempt(why: Interruption | None, cancelled: bool) -> None:
    async def work() -> int:
        attempt, task = Attempt(CLAIM), asyncio.current_task()
        assert task
        attempt.begin()
        if cancelled:
            task.cancel()
        if why:
            attempt.interrupt(why)
            attempt.interrupt(Interruption.LEASE_LOST)  # The first reason stays.
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        attempt.end()
        attempt.interrupt(Interruption.LEASE_LOST)  # Too late.
        assert attempt.interruption is why
        return task.cancelling()

    assert await asyncio.create_task(work()) == cancelled


class Store:
    """Takes a while to write down that a handler has ended. `written`: whose ends were, in order."""

    lease = 15.0

    def __init__(self) -> None:
        self.written: list[str] = []
        self.renewed: list[Claim] = []
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()

    async def record(self, _: Claim, handler: str, *__: Any) -> None:
        self.written.append(handler)
        await asyncio.sleep(0.01)

    async def renew(self, claims: list[Claim]) -> list[Claim]:
        self.renewed = claims
        return []

    async def acquire_place(self, claim: Claim, *_: object) -> tuple[bool, float]:
        self.asked.append(claim.event_id)
        await self.may_answer.wait()
        return False, 0.0

    async def settle(self, _: Claim, settlement: Settlement, *, follow: bool) -> tuple[bool, None]:
        return not follow, None


NOTHING: Any = None


def processor(store: Store, handlers: Handlers[Any]) -> Processor:
    settings: Any = SimpleNamespace(concurrency=1, handler_timeout=60.0, max_attempts=3, queue="tenant-a")
    clients, breaker = Clients(NOTHING, NOTHING), cast(Any, SimpleNamespace(pause=lambda: 0.0))
    return Processor(
        settings,
        cast(Any, store),
        Registry([handlers]),
        breaker,
        clients=clients,
        snapshots=Snapshots(NOTHING, None),
        states={},
    )


async def test_end_of_each_of_many_handlers_is_written_once() -> None:
    handlers = Planned(*[f"h{number}" for number in range(100)]).handlers
    store, attempt = Store(), Attempt(CLAIM)
    await processor(store, handlers).run_handlers(attempt, NOTHING, list(handlers))
    assert sorted({*store.written, *attempt.unwritten}) == sorted(one.name for one in handlers)
    assert len(store.written) == 99
    assert len(attempt.unwritten) == 1  # Written together with the event's end.


async def test_handler_learns_the_queue_of_its_worker() -> None:
    queues: list[str] = []
    handlers: Any = Handlers("test")

    async def notes(event: Any, context: Any) -> None:
        queues.append(context.queue)

    handlers.on("*")(notes)
    await processor(Store(), handlers).run_handlers(Attempt(CLAIM), NOTHING, list(handlers))
    assert queues == ["tenant-a"]


async def test_event_that_waits_for_a_place_keeps_its_lease_until_handed_back() -> None:
    planned, store = Planned(), Store()
    claim = CLAIM._replace(first=False)  # The details of a first claim come before its place.
    planned.add("f", concurrency=1)
    made, following = processor(store, planned.handlers), Attempt(claim._replace(event_id="e2"))
    first = asyncio.create_task(made.handle(Attempt(claim)))  # Waits for Redis in the only place.
    second = asyncio.create_task(made.handle(following))
    await asyncio.sleep(0)
    await made.leases.renew()
    assert [claim.event_id for claim in store.renewed] == ["e1", "e2"]
    following.interrupt(Interruption.DRAINED)
    settled: Any = await second
    assert settled[0].state is State.ACCEPTED
    assert store.asked == ["e1"]
    await made.leases.renew()
    assert [claim.event_id for claim in store.renewed] == ["e1"]
    store.may_answer.set()
    settled = await first
    assert settled[0].state is State.WAITING
    settled = await made.handle(Attempt(claim._replace(event_id="e3")))
    assert settled[0].state is State.WAITING


class Callable:
    def __call__(self, event: Any, context: Any) -> None: ...


AGAIN, NOTHING_FETCHED = Failure("fetch", "Unavailable 503"), Fetched(NOTHING, since=0)
HANDLER = Handler("test.function", frozenset(), function)
failure: Any = failure_of  # Without None.


def failed(raiser: Any, error: Exception) -> Any:
    try:
        raiser(error)
    except Exception as raised:  # noqa: BLE001
        return failure_of(raised, HANDLER)


def one(error: Exception) -> None:
    if isinstance(error, ValueError) and error.args == ("a claim",):
        raise error
    raise error  # At another line of the same function.


def another(error: Exception) -> None:
    raise error


def test_cause_depends_on_function_class_and_status_alone() -> None:
    first = failed(one, ValueError("a claim"))
    assert failed(one, ValueError("another")).cause == first.cause
    assert len({first.cause, failed(another, ValueError()).cause, failed(one, TypeError()).cause}) == 3
    assert failed(one, GiveUp("for e1")).cause == failed(one, GiveUp("for e2")).cause
    assert "e1" not in failed(one, ExceptionGroup("", [GiveUp("for e1")])).what
    assert "a claim" not in f"{first!r} {first.described()} {first.history()}"
    assert first.at.endswith(" one")
    bad, worse = (failure(InvalidRequest("no", status=status)) for status in (400, 422))
    assert (bad.what, bad.cause != worse.cause) == ("InvalidRequest 400", True)


def test_cause_of_a_group_is_where_its_members_were_raised() -> None:
    def group(*raisers: Any) -> Any:
        members = []
        for number, raiser in enumerate(raisers):
            try:
                raiser(KeyError("a claim") if number else ValueError("a claim"))
            except Exception as error:  # noqa: BLE001
                members.append(error)
        return failed(one, ExceptionGroup("a claim", members[::-1]))

    first = group(one, another)
    assert first.what == "ExceptionGroup (KeyError, ValueError)"
    assert first.where == f"{__name__} another, {__name__} one"
    assert group(another, one).where == first.where
    assert re.fullmatch(r"attempt/test_attempt\.py:\d+ another, attempt/test_attempt\.py:\d+ one", first.at)
    assert group(one, another).cause == first.cause != group(one, one).cause == group(one, one, one).cause
    assert failed(one, ExceptionGroup("", [ValueError()])).where == f"{__name__} one"  # Its member has no place here.
    for put_off in (PlatformPaused("it is"), ConcurrencyReached()):
        assert failure_of(put_off, HANDLER) is failure_of(put_off) is None
    assert failure_of(ExceptionGroup("", [PlatformPaused("it is"), ConcurrencyReached()]), HANDLER) is None
    assert failure_of(ExceptionGroup("", [PlatformPaused("it is"), ValueError()]), HANDLER) is not None


def test_error_that_no_author_raised_is_at_the_handler() -> None:
    late = failure(HandlerTimeout("longer than 3 s"), HANDLER, 3_000.0)
    assert (late.what, late.where) == ("HandlerTimeout", f"{__name__} function")
    assert late.at.startswith("attempt/test_attempt.py:")
    assert failure(ValueError(), Handler("test.raises", frozenset(), pytest.raises)).package.startswith("pytest ")
    assert distribution("pytest.fixtures").startswith("pytest ")
    assert distribution("nowhere") == ""  # A loose module has no version.
    for form, name in ((partial(function), "function"), (Callable(), "Callable.__call__")):
        late = failure(HandlerTimeout(), Handler("test.form", frozenset(), form))
        assert (late.where, late.at.partition(":")[0]) == (f"{__name__} {name}", "attempt/test_attempt.py")


@pytest.mark.parametrize(("ended", "fetched", "failures", "expected"), [
    ({}, None, [], {"fetch": "f", "worker": "w", "a.x": "x", "a.y": "y"}),
    ({"a.x": "done", "a.y": "dead: no"}, NOTHING_FETCHED, [], {"a.y": "y"}),
    ({}, None, [AGAIN], {"fetch": AGAIN.cause, "a.x": "x", "a.y": "y"}),
])  # fmt: skip
def test_open_errors_are_those_that_the_attempt_left(
    ended: dict[str, str], fetched: Fetched | None, failures: list[Failure], expected: dict[str, str]
) -> None:
    claim = CLAIM._replace(causes={"fetch": "f", "worker": "w", "a.x": "x", "a.y": "y"})
    assert Attempt(claim, fetched=fetched, statuses=ended, failures=failures).open_errors == expected
    schedules = dict.fromkeys(("a.x", "a.y", "a.z", "fetch"), Schedule())
    claim = CLAIM._replace(schedules=schedules, ended={"a.z": "done"})  # By a worker that lost it.
    assert Attempt(claim, statuses=ended).pending == tuple(sorted({"a.x", "a.y"} - ended.keys()))
