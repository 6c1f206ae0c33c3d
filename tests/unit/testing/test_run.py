"""`run` and `arun`: what a worker would make of a handler."""

import asyncio
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.stdlib import BoundLogger

from credhook import Backoff, GiveUp, Handlers, Issuance, Retry, Unavailable, UserRequest
from credhook.testing import FakeApi, Result, arun, assert_idempotent, event, run
from credhook.worker.attempt.retry import BACKOFF
from credhook.worker.attempt.running import HandlerTimeout
from credhook.worker.handlers import logging_handler
from credhook.worker.handlers.arguments import Context, FailedRun, FetchedEvent, SyncContext

handlers = Handlers("accounts")
computes_until = 0.0
COMPLETED: Final = "openid4vc.issuance.completed"
EVENT = event(COMPLETED, webhook_id="m1")


@handlers.on(COMPLETED)
async def activate(event: FetchedEvent[Issuance], context: Context) -> None:
    context.log.info("activated", size=len(event.details.credentials))
    await context.api.users.create(UserRequest(username=event.resource_id))


@handlers.on(COMPLETED)
def activate_in_a_thread(event: FetchedEvent, context: SyncContext) -> None:
    context.log.info("acti%s", "vated", thread=threading.get_ident())
    context.api.users.create(UserRequest(username=event.resource_id))


def raising(error: Exception | None) -> Callable[[Any, Any], Any]:
    async def ends(event: FetchedEvent, context: Context) -> None:
        if error is not None:
            raise error

    return ends


def ended(result: Result) -> tuple[Any, ...]:
    return result.outcome, result.retry_in, result.cause


@pytest.mark.parametrize("handler", [activate, activate_in_a_thread])
def test_a_handler_gets_what_a_worker_would_give_it(handler: Any) -> None:
    result = run(handler, EVENT)
    assert ended(result) == ("done", None, "")
    assert (result.attempts, result.error) == (1, None)
    (line,) = result.logged
    assert (line["event"], line["log_level"], line["webhook_id"], line["event_type"], line["resource_id"]) == (
        "activated", "info", "m1", COMPLETED, EVENT.resource_id,
    )  # fmt: skip
    assert (line["handler"], line["attempt"]) == (f"accounts.{handler.__name__}", 1)
    assert line.get("thread") != threading.get_ident()
    (call,) = result.calls
    assert (call.method, call.body, call.status) == ("POST", {"username": EVENT.resource_id}, 201)


def test_the_handler_that_logs_keeps_a_strange_status_short() -> None:
    (line,) = run(logging_handler.event, event(COMPLETED, status="s" * 65)).logged
    assert (line["event"], line["status"]) == ("event_fetched", "s" * 64)


def test_its_context_is_that_of_its_name_and_event() -> None:
    seen: list[Context] = []

    async def undecorated(event: FetchedEvent, context: Context) -> None:
        seen.append(context)
        assert await context.api.issuances.get(event.resource_id) == event.details

    assert run(undecorated, EVENT).outcome == "done"
    run(undecorated, EVENT, stale=True)
    assert [context.stale for context in seen] == [False, True]
    assert seen[0].idempotency_key == "m1:test.undecorated"
    assert isinstance(seen[0].log, BoundLogger)


@pytest.mark.parametrize(("error", "as_it_ends"), [
    (None, ("done", None, "")),
    (Retry(after=30), ("waiting", 30.0, "Retry")),
    (Retry(after=timedelta(hours=2)), ("waiting", 7_200.0, "Retry")),
    (Retry(), ("waiting", BACKOFF.wait(1, 0.5), "Retry")),
    (GiveUp("account is closed"), ("dead", None, "account is closed")),
    (ValueError("Ada"), ("waiting", BACKOFF.wait(1, 0.5), "ValueError")),
    (ExceptionGroup("", [Unavailable("no", status=429, retry_after=60)]),
     ("waiting", pytest.approx(60.05 * 1.5), "ExceptionGroup (Unavailable 429)")),
    (ExceptionGroup("", [Unavailable("no", status=503)] * 10),
     ("waiting", pytest.approx(0.75 + 0.5), "ExceptionGroup (Unavailable 503)")),
])  # fmt: skip
def test_exception_of_the_handler_decides_the_outcome(
    error: Exception | None, as_it_ends: tuple[str, float | None, str]
) -> None:
    result = run(raising(error), EVENT)
    assert ended(result) == as_it_ends
    assert result.error is error
    assert "Ada" not in repr(result)
    assert (result.at[:1] == ("Unavailable",)) == isinstance(error, ExceptionGroup)
    assert error is None or "test_run.py" in result.at[-1]


def test_run_repeats_with_the_same_key_until_it_is_settled() -> None:
    seen = []

    async def fourth_time_lucky(event: FetchedEvent, context: Context) -> None:
        seen.append((event.attempt, context.idempotency_key))
        if event.attempt < 4:
            raise ValueError

    result = run(fourth_time_lucky, EVENT, attempts="until settled")
    assert (result.outcome, result.attempts) == ("done", 4)
    assert seen == [(number, "m1:test.fourth_time_lucky") for number in (1, 2, 3, 4)]
    assert ended(run(fourth_time_lucky, EVENT, attempts=2)) == ("waiting", BACKOFF.wait(2, 0.5), "ValueError")
    dead = run(raising(ValueError()), EVENT, attempts="until settled")
    assert (dead.outcome, dead.attempts) == ("dead", 12)


def test_a_platform_that_asks_for_a_pause_gets_it_and_no_attempt_is_spent() -> None:
    api, seen = FakeApi(), []

    async def calls(event: FetchedEvent, context: Context) -> None:
        seen.append(event.attempt)
        await context.api.users.list()

    api.fail(429, retry_after=60)
    waiting = run(calls, EVENT, api=api)
    assert ended(waiting) == ("waiting", pytest.approx(60.05 * 1.5), "Unavailable 429")
    assert len(waiting.calls) == 1
    api.fail(429, retry_after=60)
    done = run(calls, EVENT, api=api, attempts="until settled")
    assert (done.attempts, [call.status for call in done.calls]) == (2, [429, 200])  # None of the run before.
    assert seen == [1, 1, 1]


def test_a_platform_that_asks_for_pauses_for_a_day_costs_attempts() -> None:
    api = FakeApi()
    api.fail(429, retry_after=3_600, times=1_000)
    result = run(activate, EVENT, api=api, attempts="until settled")
    assert (result.outcome, result.cause) == ("dead", "Unavailable 429")
    assert 288 > result.attempts - 12 > 144  # A pause is 5 minutes at most, and events come back within twice that.


def test_a_platform_that_fails_once_costs_an_attempt() -> None:
    api = FakeApi()
    api.fail(503)
    api.time_out()
    result = run(activate, EVENT, api=api, attempts=2)
    assert ended(result) == ("waiting", BACKOFF.wait(2, 0.5), "Unavailable timeout")
    assert [call.status for call in result.calls] == [503, None]
    assert [line["attempt"] for line in result.logged] == [1, 2]


async def awaits_for_ever(event: FetchedEvent, context: Context) -> None:
    await asyncio.Event().wait()


async def swallows(event: FetchedEvent, context: Context) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


@handlers.on(COMPLETED, timeout=60)  # The run's own wins.
def hangs(event: FetchedEvent, context: SyncContext) -> None:
    threading.Event().wait(30)


@pytest.mark.parametrize("handler", [awaits_for_ever, swallows, hangs])
def test_run_times_handlers_out(handler: Any) -> None:
    result = run(handler, EVENT, timeout=0.02)
    assert (result.outcome, type(result.error)) == ("timed_out", HandlerTimeout)
    assert result.retry_in == BACKOFF.wait(1, 0.5)
    assert run(handler, replace(EVENT, attempt=11), timeout=0.02, attempts="until settled").outcome == "dead"


async def blocks(event: FetchedEvent, context: Context) -> None:
    async def block() -> None:
        time.sleep(1.5)  # noqa: ASYNC251  That is the point.

    await asyncio.create_task(block())


async def waits_for_another_thread(event: FetchedEvent, context: Context) -> None:
    threading.Event().wait(1.5)


async def waits_for_a_process(event: FetchedEvent, context: Context) -> None:
    subprocess.run(["true"], check=True)  # noqa: ASYNC221


async def waits_for_a_server(event: FetchedEvent, context: Context) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


async def reads_a_file_and_awaits_a_process(event: FetchedEvent, context: Context) -> None:
    Path(__file__).read_bytes()  # noqa: ASYNC240
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()


async def computes(event: FetchedEvent, context: Context) -> None:
    while time.thread_time() < computes_until:
        pass


def waits_in_a_thread(event: FetchedEvent, context: SyncContext) -> None:
    time.sleep(0.4)


async def drops(event: FetchedEvent, context: Context) -> None:
    context.api.users.list()  # type: ignore[unused-coroutine]


@pytest.mark.parametrize(("handler", "cause", "logged"), [
    (blocks, "BlockingError", "in block\n"),
    (waits_for_another_thread, "BlockingError", "in waits_for_another_thread\n"),
    (waits_for_a_process, "BlockingError", "in waits_for_a_process\n"),
    (waits_for_a_server, "BlockingError", "in waits_for_a_server\n"),
    (reads_a_file_and_awaits_a_process, "", ""),
    (computes, "", ""),
    (waits_in_a_thread, "", ""),
    (drops, "CoroutineNotAwaited", "users.list has not run: write await before the call"),
])  # fmt: skip
def test_a_test_that_fails_is_told_the_reason(
    handler: Any, cause: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    global computes_until  # noqa: PLW0603
    computes_until = time.thread_time() + 0.4
    with warnings.catch_warnings(record=True) as warned:
        result = run(handler, EVENT)
    assert len(warned) == (handler is drops)
    assert (result.outcome, result.cause) == ("waiting" if cause else "done", cause)
    assert logged in caplog.text
    assert bool(caplog.text) == bool(cause)


async def test_nothing_that_hangs_is_left_on_the_tests_own_loop() -> None:
    before = asyncio.all_tasks()
    await arun(swallows, EVENT, timeout=0.02)
    assert asyncio.all_tasks() == before


def test_the_threads_own_loop_stays() -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    run(activate, EVENT)
    assert asyncio.get_event_loop() is loop
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.parametrize(("handler", "event", "options", "why"), [
    (activate, event("openid4vc.issuance.failed"), {}, "accounts.activate would not run for openid4vc.issuance.failed"),
    (lambda event, context: None, EVENT, {}, "has no usable name"),
    (activate, EVENT, {"attempts": 0}, "attempts= should be"),
    (activate, EVENT, {"attempts": "until done"}, "attempts= should be"),
    (activate, EVENT, {"attempts": 1.5}, "attempts= should be"),
    (activate, EVENT, {"timeout": 0}, "timeout= should be"),
    (activate, EVENT, {"timeout": -1}, "timeout= should be"),
])  # fmt: skip
def test_run_refuses_functions_that_a_worker_would_refuse(handler: Any, event: Any, options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        run(handler, event, **options)


@pytest.mark.parametrize(("call", "arguments", "why"), [
    (run, (activate, COMPLETED), r"a str is no event: make it with event\(type\)"),
    (run, ("activate", EVENT), "a str is no handler"),
    (assert_idempotent, (activate, COMPLETED), "a str is no event"),
    (event, ("openid4vc.issuance.complete",), "is not a known event type"),
    (FakeApi().fail, (200,), "status= should be"),
])  # fmt: skip
def test_wrong_usage_shows_the_lines_of_the_test(call: Callable[..., Any], arguments: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why) as raised:
        call(*arguments)
    assert {str(entry.path) for entry in raised.traceback.filter(raised)} == {__file__}


said = Handlers[Any]("said")


@said.on(COMPLETED, give_up_on=KeyError, retries=1, backoff=Backoff(first=7, longest=7))
async def looks_up(event: FetchedEvent, context: Context) -> None:
    raise KeyError if event.details.is_("offered") else ValueError


@said.on(COMPLETED, retries=1, condition=attrgetter("detail"))
async def is_misspelt(event: FetchedEvent, context: Context) -> None: ...


@said.on(COMPLETED)
async def takes_the_tests_client(event: FetchedEvent, context: Context) -> None:
    context.api.sync.users.list()  # type: ignore[attr-defined]


def test_run_applies_the_options_of_a_handler() -> None:
    async def comes_later(event: FetchedEvent, context: Context) -> None: ...

    elsewhere = Handlers("elsewhere")
    elsewhere.on(COMPLETED, condition=lambda event: event.attempt > 1)(comes_later)
    assert ended(run(takes_the_tests_client, EVENT))[2] == "AttributeError"
    assert ended(run(is_misspelt, EVENT, attempts="until settled")) == ("dead", None, "AttributeError")
    assert run(comes_later, EVENT).outcome == "skipped"
    assert run(comes_later, replace(EVENT, attempt=2)).outcome == "done"
    assert ended(run(looks_up, EVENT)) == ("waiting", 7, "ValueError")
    assert [run(one, EVENT, attempts="until settled").attempts for one in (looks_up, is_misspelt)] == [2, 2]
    assert ended(run(looks_up, event(COMPLETED, status="offered"))) == ("dead", None, "KeyError")


def test_run_calls_the_hooks_after_each_failed_attempt() -> None:
    async def fails(event: FetchedEvent, context: Context) -> None:
        raise KeyError

    async def note(failure: FailedRun, context: Context) -> None:
        calls.append((failure.handler, failure.event.attempt, failure.will_retry))

    async def breaks(failure: FailedRun, context: Context) -> None:
        raise ValueError("no DSN")

    hooked, calls = Handlers("hooked"), list[tuple[str, int, bool]]()
    hooked.on(COMPLETED, retries=1)(fails)
    hooked.on_error(note)
    assert run(fails, EVENT, attempts="until settled").outcome == "dead"
    assert calls == [("hooked.fails", 1, True), ("hooked.fails", 2, False)]
    hooked.on_give_up(breaks)
    assert run(fails, EVENT).outcome == "waiting"
    with pytest.raises(ValueError, match="no DSN"):
        run(fails, EVENT, attempts=2)


stateful = Handlers[Any]("stateful")
states: list[Any] = []


@stateful.startup
def connect() -> None: ...


@stateful.on(COMPLETED)
async def looks_at_state(event: FetchedEvent, context: Context[Any, Any]) -> None:
    states.append(context.state)


@handlers.on(COMPLETED, retries=9)
async def goes_on(event: FetchedEvent[Issuance], context: Context) -> None:
    step = (context.progress.value or 0) + 1
    await context.api.users.create(UserRequest(username=f"{event.resource_id}-{step}"))
    await context.progress.save(step)
    if step < 3:
        raise ConnectionError


@handlers.on(COMPLETED)
def goes_on_in_a_thread(event: FetchedEvent[Issuance], context: SyncContext) -> None:
    context.progress.save((context.progress.value or 0) + 1)


def test_run_keeps_progress_between_attempts() -> None:
    first = run(goes_on, EVENT)
    assert (first.outcome, first.progress) == ("waiting", 1)
    last = run(goes_on, EVENT, attempts="until settled", progress=first.progress)
    assert (last.outcome, last.attempts, last.progress) == ("done", 2, 3)
    assert run(goes_on_in_a_thread, EVENT, progress=41).progress == 42
    assert "progress" not in repr(last)


def test_handler_that_goes_on_where_it_was_is_idempotent() -> None:
    assert_idempotent(goes_on, EVENT)


def test_context_of_a_test_has_progress(credhook_context: Callable[..., Any]) -> None:
    context = credhook_context(goes_on, EVENT)
    with pytest.raises(ConnectionError):
        asyncio.run(goes_on(EVENT, context))
    assert context.progress.value == 1
    context = credhook_context(goes_on_in_a_thread, EVENT)
    goes_on_in_a_thread(EVENT, context)
    assert context.progress.value == 1


def test_a_handler_whose_plugin_has_a_start_up_wants_a_state_to_be_said() -> None:
    with pytest.raises(ValueError, match=r"stateful has a start-up function: pass it, state=[a-z_]+, or the state"):
        run(looks_at_state, EVENT)
    with pytest.raises(ValueError, match=r"stateful has a start-up function: pass it, fresh=[a-z_]+, or a function"):
        assert_idempotent(looks_at_state, EVENT)
    assert run(looks_at_state, EVENT, state={"a": 1}).outcome == "done"
    assert run(looks_at_state, EVENT, state=None).outcome == "done"
    assert_idempotent(looks_at_state, EVENT, fresh=lambda: 8, effects=lambda: 8 in states)
    assert states == [{"a": 1}, None, 8, 8, 8]
