"""An attempt by itself: what it comes to, how it is broken off, its handlers, and which failures have one cause."""

import asyncio
import re
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from credhook import InvalidRequest
from credhook.store import State
from credhook.worker.api.errors import Unavailable
from credhook.worker.attempt.attempt import Attempt, Interruption, Outcome, distribution, failure_of
from credhook.worker.attempt.details import Fetched
from credhook.worker.attempt.processor import Clients, Processor
from credhook.worker.attempt.retry import ConcurrencyReached, DataGone, Defer, GiveUp, Retry
from credhook.worker.attempt.running import HandlerTimeout
from credhook.worker.handlers.registry import FetchedEvent, Handler, Handlers, Registry
from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.queue.claims import Claim, Settlement
from credhook.worker.queue.failure import Failure
from support.waiting import until_async
from support.worker.attempts import Planned

NOW = datetime(2026, 11, 22, tzinfo=UTC)
CLAIM = Claim(
    event_id="e1",
    type="openid4vc.issuance.completed",
    resource_id="i1",
    received_at=NOW,
    now=int(NOW.timestamp() * 1_000),
    attempt=1,
    fence=1,
    first=True,
    latest=(0, 0),
    job="j1",
)


def test_the_shortest_wait_decides_and_names_its_cause() -> None:
    outcome = (
        Outcome()
        .after("a.f", ValueError(), Retry(9))
        .after("a.g", KeyError(), Retry(3))
        .after("a.h", OSError(), Retry(5))
    )
    assert (outcome.again, outcome.error) == (3, "a.g: KeyError")


def test_what_was_given_up_is_remembered_while_others_come_back() -> None:
    reason, before = GiveUp("closed"), Outcome().with_ended("a.e", "dead: ValueError").with_ended("a.d", "done")
    outcome = before.after("a.f", reason, reason).after("", OSError(), Retry(1))
    assert outcome == Outcome(again=1, error="OSError", gave_up=("a.e: ValueError", "a.f: closed"), spent=True)


def test_an_attempt_counts_unless_all_that_failed_waits_for_the_platform() -> None:
    held_up, failed = Outcome().after("", Unavailable(""), Defer(0.4)), Outcome().after("a.f", ValueError(), Retry(30))
    assert held_up.settlement() == Settlement(State.WAITING, "Unavailable", wait=0.4, spend=False)
    assert held_up.settlement().more("w")["wait"] == 400
    assert held_up.after("a.f", ValueError(), Retry(30)).settlement().spend
    assert [failed.after("a.g", Unavailable(""), Defer(wait)).settlement().spend for wait in (1, 60)] == [True, True]


def test_presented_data_is_gone_whatever_else_was_given_up() -> None:
    gone, reason = DataGone(was_there=True), GiveUp("closed")
    before = Outcome().with_ended("a.f", "dead: closed").after("", gone, GiveUp("DataGone"))
    after = Outcome().after("a.g", gone, GiveUp("DataGone")).after("a.f", reason, reason)
    assert before.settlement(("a.missing",)).state is after.settlement().state is State.DATA_GONE


@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("why", [Interruption.DRAINED, None])
async def test_an_interruption_ends_with_its_attempt_and_another_cancellation_stays(
    why: Interruption | None, cancelled: bool
) -> None:
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

    async def record(self, _: Claim, handler: str, *__: Any) -> None:
        self.written.append(handler)
        await asyncio.sleep(0.01)

    async def settle(self, _: Claim, settlement: Settlement, *, follow: bool) -> tuple[bool, None]:
        return not follow, None


NOTHING: Any = None


def processor(store: Store, handlers: Handlers[Any]) -> Processor:
    settings: Any = SimpleNamespace(concurrency=1, handler_timeout=60.0, max_attempts=3)
    clients = Clients(NOTHING, NOTHING)
    return Processor(
        settings, cast(Any, store), Registry([handlers]), NOTHING, clients=clients, snapshots=NOTHING, states={}
    )


async def test_the_end_of_each_of_many_handlers_is_written_once() -> None:
    handlers = Planned(*[f"h{number}" for number in range(100)]).handlers
    store, attempt = Store(), Attempt(CLAIM)
    event = FetchedEvent("openid4vc.issuance.completed", "i1", "e1", NOW, 1, NOTHING)
    await processor(store, handlers).run_handlers(attempt, event, list(handlers))
    assert sorted({*store.written, *attempt.unwritten}) == sorted(one.name for one in handlers)
    assert len(store.written) == 99
    assert len(attempt.unwritten) == 1  # Written together with the event's end.


async def test_a_failure_whose_record_was_cancelled_on_its_way_is_not_counted_again() -> None:
    store, attempt = Store(), Attempt(CLAIM, failures=[Failure("a.f", "ValueError")], unwritten={"a.f": "dead: no"})
    writing = asyncio.create_task(processor(store, Handlers("none"))._record(attempt, "a.f"))
    await asyncio.sleep(0)  # It has begun.
    writing.cancel()
    await asyncio.wait({writing})
    assert (attempt.uncounted, attempt.unwritten) == ({}, {"a.f": "dead: no"})


async def test_an_event_that_follows_keeps_its_lease_while_it_waits_for_a_place_and_is_handed_back() -> None:
    made, attempt = processor(Store(), Handlers("none")), Attempt(CLAIM)
    await made._places.acquire()
    waiting = asyncio.create_task(made.handle(attempt))
    await until_async(lambda: made.leases._held)
    attempt.interrupt(Interruption.DRAINED)
    settled: Any = await waiting
    assert (settled[0].state, settled[0].spend) == (State.ACCEPTED, False)
    assert not made.leases._held
    made._places.release()
    settled = await made.handle(Attempt(CLAIM))
    assert settled[0].state is State.UNHANDLED


def function(event: Any, context: Any) -> None: ...


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


def test_lines_and_messages_do_not_tell_causes_apart_but_functions_classes_and_statuses_do() -> None:
    first = failed(one, ValueError("a claim"))
    assert failed(one, ValueError("another")).cause == first.cause
    assert len({first.cause, failed(another, ValueError()).cause, failed(one, TypeError()).cause}) == 3
    assert failed(one, GiveUp("for e1")).cause == failed(one, GiveUp("for e2")).cause
    assert "e1" not in failed(one, ExceptionGroup("", [GiveUp("for e1")])).what
    assert "a claim" not in f"{first!r} {first.counted()} {first.history()}"
    assert first.at.endswith(" one")
    bad, worse = (failure(InvalidRequest("no", status=status)) for status in (400, 422))
    assert (bad.what, bad.cause != worse.cause) == ("InvalidRequest 400", True)


def test_a_group_is_caused_where_its_members_were_raised() -> None:
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


def test_one_that_no_line_of_the_author_has_raised_is_at_the_handler() -> None:
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
def test_whoever_ends_well_or_fails_otherwise_leaves_a_cause(
    ended: dict[str, str], fetched: Fetched | None, failures: list[Failure], expected: dict[str, str]
) -> None:
    claim = CLAIM._replace(causes={"fetch": "f", "worker": "w", "a.x": "x", "a.y": "y"})
    assert Attempt(claim, fetched=fetched, statuses=ended, failures=failures).open_errors == expected
    claim = CLAIM._replace(pending=frozenset({"a.x", "a.y", "a.z"}), ended={"a.z": "done"})  # By a worker that lost it.
    assert Attempt(claim, statuses=ended).pending == tuple(sorted({"a.x", "a.y"} - ended.keys()))
