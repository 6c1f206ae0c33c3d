"""`run_event`: what a worker would make of an event with all handlers of some plugins."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from credhook import AsyncContext, Backoff, FailedRun, FetchedEvent, GiveUp, Handlers, Issuance, Retry, SyncContext
from credhook.testing import FakeApi, assert_idempotent, event, run, run_event

COMPLETED: Final = "openid4vc.issuance.completed"
EVENT = event(COMPLETED, webhook_id="m1")

accounts = Handlers("accounts")


@accounts.on(COMPLETED, retries=3, backoff=Backoff(first=60, longest=60))
async def activate(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
    context.log.info("activating", attempt_of_handler=event.attempt)
    await context.progress.save((context.progress.value or 0) + 1)
    if context.progress.value < 3:
        raise ConnectionError


@accounts.on(COMPLETED, after=activate)
def mail(event: FetchedEvent[Issuance], context: SyncContext) -> None:
    context.api.users.list()


@accounts.on(COMPLETED, condition=lambda event: event.details.is_("offered"))
async def count(event: FetchedEvent[Issuance], context: AsyncContext) -> None: ...


@accounts.on(COMPLETED)
async def reminds(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
    if event.attempt == 1:
        raise Retry(after=3 * 86_400, reason="reminder")


def test_handlers_run_in_the_order_and_at_the_times_of_a_worker() -> None:
    api = FakeApi()
    result = run_event(EVENT, accounts, api=api)
    assert (result.state, result.error) == ("done", "")
    assert result.handlers == {
        "accounts.activate": "done", "accounts.mail": "done", "accounts.count": "skipped", "accounts.reminds": "done",
    }  # fmt: skip
    runs = [(run.handler.partition(".")[2], run.attempt, round(run.seconds, -1)) for run in result.runs]
    assert runs == [
        ("activate", 1, 0), ("reminds", 1, 0), ("activate", 2, 60), ("activate", 3, 120), ("mail", 1, 120),
        ("reminds", 2, 259_200),
    ]  # fmt: skip
    assert [line["attempt_of_handler"] for line in result.logged if line["event"] == "activating"] == [1, 2, 3]
    assert [call.path for call in result.calls].count("/consumer-onboarding/api/users") == 1
    assert "activating" not in repr(result)
    again = run_event(EVENT, accounts, api=api)
    assert [call.path for call in again.calls] == [call.path for call in result.calls]  # None of the earlier run.


def test_one_attempt_leaves_the_event_waiting() -> None:
    result = run_event(EVENT, accounts, attempts=1)
    assert (result.state, result.error) == ("waiting", "accounts.activate: ConnectionError")
    assert result.handlers["accounts.mail"] == "waiting"


def test_given_up_handler_ends_those_behind_it_and_calls_hooks() -> None:
    plugin: Any = Handlers("x")
    failures: list[FailedRun] = []

    @plugin.on(COMPLETED)  # type: ignore[untyped-decorator]
    def first(event: Any, context: Any) -> None:
        raise GiveUp("closed")

    @plugin.on(COMPLETED, after=first)  # type: ignore[untyped-decorator]
    def second(event: Any, context: Any) -> None: ...

    @plugin.on_give_up  # type: ignore[untyped-decorator]
    def note(failure: FailedRun, context: Any) -> None:
        failures.append(failure)

    result = run_event(EVENT, plugin)
    assert (result.state, result.error) == ("dead", "x.first: closed")
    assert result.handlers == {"x.first": "dead", "x.second": "dead"}
    assert [failure.handler for failure in failures] == ["x.first", "x.second"]

    @plugin.on_error  # type: ignore[untyped-decorator]
    def breaks(failure: FailedRun, context: Any) -> None:
        raise KeyError("no DSN")

    with pytest.raises(KeyError, match="no DSN"):
        run_event(EVENT, plugin)


def test_paused_platform_costs_no_attempt() -> None:
    plugin: Any = Handlers("x")

    @plugin.on(COMPLETED, retries=0)  # type: ignore[untyped-decorator]
    async def creates(event: Any, context: Any) -> None:
        if not context.progress.value:
            await context.progress.save(1)
            api.fail(429, retry_after=60)
        await context.api.users.list()

    api = FakeApi()
    result = run_event(EVENT, plugin, api=api)
    assert result.state == "done"
    assert [run.attempt for run in result.runs] == [1, 1]
    assert result.runs[1].seconds >= 60


def test_event_that_no_handler_wants_is_unhandled() -> None:
    result = run_event(event("openid4vc.issuance.failed"), accounts)
    assert (result.state, result.handlers, result.runs) == ("unhandled", {}, ())


stateful = Handlers[list[str]]("stateful")
opened: list[str] = []


@stateful.lifespan
async def pool() -> AsyncIterator[list[str]]:
    opened.append("opened")
    yield opened
    opened.append("closed")


@stateful.on(COMPLETED)
async def uses(event: FetchedEvent[Issuance], context: AsyncContext[list[str]]) -> None:
    await asyncio.sleep(0)
    context.state.append("used")


def test_state_may_be_the_function_that_makes_it() -> None:
    for kit in (lambda: run(uses, EVENT, state=pool), lambda: run_event(EVENT, stateful, state=pool)):
        opened.clear()
        kit()
        assert opened == ["opened", "used", "closed"]
    assert run(uses, EVENT, state=["given"]).outcome == "done"
    with pytest.raises(TypeError, match=r"state= is a call that has not run: pass the function itself, state=pool"):
        run(uses, EVENT, state=pool())
    with pytest.raises(TypeError, match=r"state= is a call that has not run"):
        run_event(EVENT, stateful, state={stateful: pool()})
    wrong: list[tuple[str, Any]] = [("fresh", pool()), ("effects", [])]
    for option, value in wrong:
        with pytest.raises(TypeError, match=rf"{option}= should be a function, and is a "):
            assert_idempotent(uses, EVENT, **dict[str, Any](fresh=pool) | {option: value})
    opened.clear()
    assert_idempotent(uses, EVENT, fresh=pool, effects=lambda: opened.count("used") > 0)
    assert opened == ["opened", "used", "closed", "opened", "used", "used", "closed", "opened", "used", "closed"]
    with pytest.raises(ValueError, match="stateful has a start-up function: pass it, state=pool, or the state"):
        run_event(EVENT, stateful)


def test_plugins_that_share_a_lifespan_start_it_once() -> None:
    other = Handlers[list[str]]("other")
    other.lifespan(pool)
    other.on(COMPLETED)(uses)
    opened.clear()
    assert run_event(EVENT, stateful, other, state=pool).state == "done"
    assert opened == ["opened", "used", "used", "closed"]


def test_plugins_have_states_of_their_own() -> None:
    ended: list[int] = []
    seen: list[object] = []
    numbers = Handlers[int]("numbers")
    numbers.startup(lambda: 7)
    numbers.shutdown(ended.append)

    async def looks(event: Any, context: Any) -> None:
        seen.append(context.state)

    stateless = Handlers("stateless")
    stateless.on(COMPLETED)(looks)
    numbers.on(COMPLETED)(looks)
    used: list[str] = []
    states = {stateful: used, numbers: numbers.startup_function}
    assert run_event(EVENT, stateful, stateless, numbers, state=states).state == "done"
    assert (used, seen, ended) == (["used"], [None, 7], [7])
    seen.clear()
    assert run_event(EVENT, stateless, numbers, state=3).state == "done"
    assert seen == [3, 3]
    with pytest.raises(ValueError, match="numbers has a start-up function: pass the state of each plugin, state="):
        run_event(EVENT, stateful, numbers, state=pool)
    with pytest.raises(ValueError, match="state= has a state of stateful, whose handlers are not run here"):
        run_event(EVENT, numbers, state=states)


def test_age_of_the_event_moves_with_the_clock() -> None:
    plugin = Handlers("x")
    ages: list[timedelta] = []

    @plugin.on(COMPLETED)
    async def reminds(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
        ages.append(event.age)
        if event.age < timedelta(days=3):
            raise Retry(after=timedelta(days=3) - event.age)

    assert run_event(EVENT, plugin).state == "done"
    assert run(reminds, EVENT, attempts="until settled").outcome == "done"
    assert ages == [timedelta(0), timedelta(days=3)] * 2
    old = event(COMPLETED, received_at=datetime.now(UTC) - timedelta(days=4))
    for kit in (lambda: run(reminds, old), lambda: run_event(old, plugin)):
        kit()
        assert timedelta(days=4) <= ages.pop() < timedelta(days=5)


@pytest.mark.parametrize("is_whole", [True, False])
def test_hook_has_no_progress_to_save(is_whole: bool) -> None:
    plugin = Handlers("x")

    @plugin.on(COMPLETED)
    async def saves(event: FetchedEvent[Issuance], context: AsyncContext) -> None:
        await context.progress.save(1)
        raise GiveUp

    @plugin.on_error
    def notes(failure: FailedRun, context: SyncContext) -> None:
        assert context.progress.value is None
        context.progress.save(2)

    with pytest.raises(RuntimeError, match="on_error and on_give_up have no progress to save: save it in the handler"):
        run_event(EVENT, plugin) if is_whole else run(saves, EVENT)


async def test_kit_runs_beside_a_loop() -> None:
    """A notebook has a running loop in its thread."""
    assert run(activate, EVENT, attempts="until settled").outcome == "done"
    assert run_event(EVENT, accounts).state == "done"


@pytest.mark.parametrize(("arguments", "options", "message"), [
    ((COMPLETED, accounts), {}, r"a str is no event: make it with event\(type\)"),
    ((EVENT,), {}, r"pass the plugins one by one"),
    ((EVENT, activate), {}, r"pass the plugins one by one"),
    ((EVENT, accounts), {"attempts": 0}, "attempts= should be a number from 1"),
])  # fmt: skip
def test_wrong_usage_of_run_event_is_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        run_event(*arguments, **options)
