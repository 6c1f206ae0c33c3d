"""What an author can say about a handler, and what is said of it when it cannot be meant."""

from collections.abc import Callable
from typing import Any

import pytest

from credhook import AsyncContext, Backoff, Context, FetchedEvent, Handlers, Issuance, Presentation, SyncContext
from credhook.worker.api.client import AsyncApi
from credhook.worker.attempt.retry import GiveUp, Retry, after_handler
from credhook.worker.handlers.registry import Handler
from credhook.worker.platform.circuit import PlatformPaused


async def wanted(event: Any, context: Any) -> None: ...


async def asynchronous(event: Any) -> bool:
    return True


def on(function: Callable[..., Any] = wanted, *types: str, **options: Any) -> Handler:
    plugin: Any = Handlers("x")
    plugin.on(*types or ("*",), **options)(function)
    (handler,) = plugin
    assert isinstance(handler, Handler)
    return handler


def test_what_is_not_said_is_left_to_the_settings() -> None:
    handler = on()
    assert (handler.timeout, handler.retries, handler.backoff, handler.concurrency) == (None, None, None, None)
    assert (handler.give_up_on, handler.condition, handler.after) == ((), None, None)
    assert handler.max_attempts(12) == 12
    assert on(retries=0).max_attempts(12) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 0}, "timeout should be seconds"),
        ({"timeout": float("nan")}, "timeout should be seconds"),
        ({"timeout": "5"}, "timeout should be seconds"),
        ({"timeout": True}, "timeout should be seconds"),
        ({"retries": -1}, "retries should be a whole number from 0 on"),
        ({"retries": 1.5}, "retries should be a whole number"),
        ({"concurrency": 0}, "concurrency should be a whole number from 1 on"),
        ({"concurrency": True}, "concurrency should be a whole number"),
        ({"backoff": 5}, r"backoff should be a Backoff\(first=…, longest=…\)"),
        ({"backoff": Backoff(first=5, longest=1)}, "backoff should be"),
        ({"backoff": Backoff(first=float("nan"), longest=1)}, "backoff should be"),
        ({"backoff": Backoff(first=-1, longest=1)}, "backoff should be"),
        ({"backoff": Backoff(first=1, longest=2, growth=0)}, "backoff should be"),
        ({"backoff": Backoff(first=1, longest=2, jitter=2)}, "backoff should be"),
        ({"give_up_on": "KeyError"}, "give_up_on should be an exception class"),
        ({"give_up_on": (KeyError, SystemExit)}, "give_up_on should be an exception class"),
        ({"condition": True}, "condition should be a plain function of the event"),
        ({"condition": asynchronous}, "condition should be a plain function of the event"),
        ({"after": "other"}, r"is to run after x\.other, which is not defined above it"),
        ({"time_out": 5}, "has no option 'time_out'; it has timeout, retries"),
    ],
)
def test_an_option_that_cannot_be_meant_is_named_with_the_handler(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=rf"x\.wanted.*{said}"):
        on(**options)


async def for_issuances(event: FetchedEvent[Issuance], context: AsyncContext) -> None: ...
async def for_presentations(event: FetchedEvent[Presentation], context: Context) -> None: ...
async def for_either(event: "FetchedEvent[Issuance | Presentation]", context: Context[AsyncApi, int]) -> None: ...
async def for_all(event: FetchedEvent, context: AsyncContext[int]) -> None: ...
async def for_a_thread(event: FetchedEvent, context: SyncContext) -> None: ...
def for_the_loop(event: FetchedEvent, context: AsyncContext) -> None: ...
def plain(event: FetchedEvent[Issuance], context: SyncContext[str]) -> None: ...
async def of_an_unknown_name(event: "FetchedEvent[Absent]", context: "Absent") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "types"),
    [
        (for_issuances, ["openid4vc.issuance.completed", "openid4vc.issuance.failed"]),
        (for_presentations, ["openid4vc.verification.data"]),
        (for_either, ["openid4vc.verification.data", "openid4vc.issuance.completed"]),
        (for_all, ["*"]),
        (plain, ["openid4vc.issuance.completed"]),
        (of_an_unknown_name, ["*"]),
    ],
)
def test_annotations_that_fit_are_taken(function: Callable[..., Any], types: list[str]) -> None:
    assert on(function, *types).function is function


@pytest.mark.parametrize(
    ("function", "types", "said"),
    [
        (
            for_issuances,
            ["openid4vc.verification.data"],
            "openid4vc.verification.data are of class Presentation",
        ),
        (for_issuances, ["*"], "are of class Presentation; annotate the event as FetchedEvent.Presentation. instead"),
        (for_presentations, ["openid4vc.issuance.completed"], "are of class Issuance"),
        (for_a_thread, ["*"], "for_a_thread is an async def: annotate its context as AsyncContext"),
        (for_the_loop, ["*"], "for_the_loop is a plain function: annotate its context as SyncContext"),
    ],
)
def test_annotations_that_do_not_fit_are_refused_at_load(
    function: Callable[..., Any], types: list[str], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        on(function, *types)


def test_a_handler_can_run_after_one_that_stands_above_it_and_no_other() -> None:
    plugin: Any = Handlers("x")
    plugin.on("*")(wanted)
    plugin.on("*", after=wanted)(for_all)
    plugin.on("*", after="for_all")(of_an_unknown_name)
    assert [one.after for one in plugin] == [None, "x.wanted", "x.for_all"]


def decided(error: Exception, attempt: int, handler: Handler) -> Retry | GiveUp:
    return after_handler(
        error,
        attempt,
        max_attempts=handler.max_attempts(12),
        backoff=handler.backoff or Backoff(first=100, longest=100),
        give_up_on=handler.give_up_on,
        chance=lambda: 1.0,
    )


def test_what_an_author_says_of_failures_decides() -> None:
    handler = on(retries=2, give_up_on=KeyError, backoff=Backoff(first=3, longest=5))
    waits = [decided(ValueError(), attempt, handler) for attempt in (1, 2)]
    assert [wait.after for wait in waits if isinstance(wait, Retry)] == [3, 5]
    assert isinstance(decided(ValueError(), 3, handler), GiveUp)
    assert isinstance(decided(KeyError("x"), 1, handler), GiveUp)
    assert isinstance(decided(IndexError(), 1, on(give_up_on=(KeyError, LookupError))), GiveUp)
    everything = on(give_up_on=Exception)
    asked = Retry(after=30)
    assert decided(asked, 1, everything) is asked
    assert isinstance(decided(PlatformPaused("x", operation="x"), 1, everything), Retry)
    longest = decided(ValueError(), 12, on(retries=99, backoff=Backoff(first=3_600, longest=30 * 86_400)))
    assert longest.after == 604_800  # type: ignore[union-attr]


def test_a_plugin_has_one_function_for_start_up_and_one_for_the_end() -> None:
    plugin: Any = Handlers("x")
    plugin.startup(lambda: 1)
    with pytest.raises(ValueError, match="'x' already has a startup function"):
        plugin.startup(lambda: 2)
    with pytest.raises(ValueError, match="the startup function should take no argument"):
        Handlers("y").startup(lambda state: 1)  # type: ignore[arg-type, misc]
    with pytest.raises(ValueError, match="the shutdown function should take one argument, the state"):
        Handlers("y").shutdown(lambda: None)  # type: ignore[arg-type, misc]


def test_a_plugin_knows_where_it_was_made_whatever_its_state() -> None:
    made = Handlers("x"), Handlers[int]("y")
    assert [one.at.rpartition(":")[0] for one in made] == ["unit/test_handler_options.py"] * 2
