"""Functions of `on_error` and `on_give_up`, called after attempts: a real Redis, a stub of the platform."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from credhook import Backoff, FailedRun, GiveUp, Retry
from credhook.store import State
from credhook.worker.attempt import processor
from credhook.worker.attempt.attempt import Attempt
from support.store.accepting import record
from support.waiting import until_async
from support.worker.attempts import Planned, attempts
from support.worker.fleet_harness import Answer, Stub

DATA = "openid4vc.verification.data"


class Hooked(Planned):
    """Handlers whose plugin notes each failure, and what the store says of the event by then."""

    def __init__(self, redis: Redis, *names: str) -> None:
        super().__init__(*names)
        self.failures: list[tuple[str, str, FailedRun]] = []
        for kind in ("on_error", "on_give_up"):
            getattr(self.handlers, kind)(self.noting(kind, redis))

    def noting(self, kind: str, redis: Redis) -> Callable[[FailedRun, Any], None]:
        def note(failure: FailedRun, context: Any) -> None:
            self.failures.append((kind, record(redis, failure.event.webhook_id)["state"], failure))

        return note

    @property
    def told(self) -> list[tuple[str, str, str, str, int, bool]]:
        """Each call: the hook, the event's state, handler, error, number of the run, and whether it runs again."""
        return [
            (kind, state, run.handler, type(run.error).__name__, run.event.attempt, run.will_retry)
            for kind, state, run in self.failures
        ]


async def test_hooks_run_once_the_state_is_stored(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    plan = Hooked(redis_client)
    plan.add("fails", backoff=Backoff(first=0.01, longest=0.01))
    plan.ends["fails"] = ValueError("Ada")
    async with attempts(redis_url, stub, plan.handlers, MAX_ATTEMPTS="2") as made:
        await made.accept("e1", DATA, "pre_1")
        await made.next()
        assert plan.told == [("on_error", "waiting", "test.fails", "ValueError", 1, True)]
        await made.next(Attempt(await made.claim_of("e1")))
    assert plan.told[1:] == [
        ("on_error", "dead", "test.fails", "ValueError", 2, False),
        ("on_give_up", "dead", "test.fails", "ValueError", 2, False),
    ]
    (_, _, failure), *_ = plan.failures
    assert failure.event.details is not None
    assert "Ada" not in repr(failure)


async def test_chosen_retry_and_success_are_no_failures(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    plan = Hooked(redis_client, "waits", "works")
    plan.ends["waits"] = Retry(after=60)
    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        assert (await made.next()).state is State.WAITING
    assert plan.told == []


async def test_handler_behind_a_given_up_handler_is_given_up(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    plan = Hooked(redis_client, "first")
    plan.add("second", after="first")
    plan.ends["first"] = GiveUp("closed")
    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        await made.next()
    assert plan.told == [
        ("on_error", "dead", "test.first", "GiveUp", 1, False),
        ("on_give_up", "dead", "test.first", "GiveUp", 1, False),
        ("on_give_up", "dead", "test.second", "GiveUp", 0, False),
    ]


async def test_event_given_up_unfetched_has_no_details(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    stub.answer = lambda _: Answer(422)
    plan = Hooked(redis_client, "never_runs")
    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        await made.next()
    assert plan.told == [("on_give_up", "dead", "test.never_runs", "InvalidRequest", 0, False)]
    assert plan.failures[0][2].event.details is None


async def test_failing_hook_is_logged_and_changes_nothing(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    plan = Hooked(redis_client, "fails")
    plan.ends["fails"] = GiveUp("closed")

    @plan.handlers.on_error  # type: ignore[untyped-decorator]
    def breaks(failure: FailedRun, context: Any) -> None:
        raise SystemExit(failure.handler)

    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        with capture_logs() as lines:
            assert (await made.next()).state is State.DEAD
    (line,) = [line for line in lines if line["event"] == "hook_failed"]
    assert (line["handler"], line["hook"], line["error"]) == ("test.fails", "test.breaks", "HandlerCrashed")
    assert [kind for kind, *_ in plan.told] == ["on_error", "on_give_up"]
    assert record(redis_client, "e1")["error"] == "test.fails: closed"


async def test_hook_has_a_time_limit(
    redis_url: str, redis_client: Redis, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "HOOK_SECONDS", 0.05)
    plan = Hooked(redis_client, "fails")
    plan.ends["fails"] = ValueError()

    @plan.handlers.on_error  # type: ignore[untyped-decorator]
    async def hangs(failure: FailedRun, context: Any) -> None:
        await asyncio.Event().wait()

    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        with capture_logs() as lines:
            await made.next()
    hooks = {line["hook"]: line["error"] for line in lines if line["event"] == "hook_failed"}
    assert hooks["test.hangs"] == "HandlerTimeout"  # On a busy machine others may reach this limit as well.


async def test_running_hook_does_not_hold_the_next_event(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    """The next event of the resource would otherwise be claimed with the settlement, and its lease could lapse."""
    plan = Hooked(redis_client, "fails")
    plan.ends["fails"] = GiveUp("closed")
    called, goes_on = threading.Event(), threading.Event()

    @plan.handlers.on_give_up  # type: ignore[untyped-decorator]
    def slow(failure: FailedRun, context: Any) -> None:
        called.set()
        goes_on.wait(60)

    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        await made.accept("e2", DATA, "pre_1")
        first = Attempt(await made.claim())
        await made.park()
        task = asyncio.create_task(made.make(first, follow=True))
        await until_async(called.is_set, what="the hook")
        assert (await made.claim()).event_id == "e2"
        goes_on.set()
        _, following = await task
    assert following is None


async def test_event_that_killed_its_workers_is_given_up_to_the_hook(
    redis_url: str, redis_client: Redis, stub: Stub
) -> None:
    plan = Hooked(redis_client, "kills")
    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        await made.next(Attempt((await made.claim())._replace(killed=2)))
    assert plan.told == [("on_give_up", "dead", "test.kills", "WorkerDied", 0, False)]


async def test_hook_has_no_progress_to_save(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    plan = Hooked(redis_client, "fails")
    plan.ends["fails"] = ValueError()

    async def saves(failure: FailedRun, context: Any) -> None:
        assert context.progress.value is None
        await context.progress.save(1)

    plan.handlers.on_error(saves)
    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        with capture_logs() as lines:
            await made.next()
    (line,) = [line for line in lines if line["event"] == "hook_failed"]
    assert str(line["exc_info"]) == "on_error and on_give_up have no progress to save: save it in the handler"


async def test_event_and_log_have_one_number_for_a_run(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    """Two workers have died with the event before."""
    plan = Hooked(redis_client, "fails", "waits")
    plan.ends |= {"fails": ValueError(), "waits": Retry(after=60)}
    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        with capture_logs() as lines:
            await made.next(Attempt((await made.claim_of("e1"))._replace(lapses=2)))
    logged = {line["event"]: line["attempt"] for line in lines if line["event"] in {"handler_failed", "retry_chosen"}}
    assert logged == {"handler_failed": 3, "retry_chosen": 3}
    (_, _, failure), *_ = plan.failures
    assert failure.event.attempt == 3


async def test_age_is_the_time_since_the_event_was_received(redis_url: str, redis_client: Redis, stub: Stub) -> None:
    plan = Hooked(redis_client, "fails")
    plan.ends["fails"] = ValueError()
    async with attempts(redis_url, stub, plan.handlers) as made:
        await made.accept("e1", DATA, "pre_1")
        claim = await made.claim_of("e1")
        await made.next(Attempt(claim._replace(now=int(claim.received_at.timestamp() * 1_000) + 90_000)))
    (_, _, failure), *_ = plan.failures
    assert failure.event.age == timedelta(seconds=90)
