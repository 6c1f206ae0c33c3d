"""Handlers: how they are registered, with which options, and what cannot be meant."""

import re
import sys
import threading
from collections.abc import Awaitable
from contextlib import asynccontextmanager, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from credhook import Backoff, Handlers
from credhook.events import EVENT_TYPES
from credhook.worker.attempt.retry import BACKOFF, Retry, after_handler
from credhook.worker.handlers import loading
from credhook.worker.handlers.registry import Handler, Registry
from credhook.worker.platform.circuit import PlatformPaused
from support.checkout import ROOT


async def activate(event: Any, context: Any) -> None: ...


def notify(event: Any, context: Any) -> None: ...


async def last(event: Any, context: Any) -> None: ...


async def yields(event: Any, context: Any) -> Any:
    yield


def test_a_handler_is_found_by_the_types_that_it_wants() -> None:
    accounts = Handlers("accounts")
    accounts.on("openid4vc.issuance.completed", "openid4vc.verification.data")(activate)
    assert Registry([accounts]).types == ("openid4vc.issuance.completed", "openid4vc.verification.data")
    accounts.on("*")(notify)
    registry = Registry([accounts])
    assert [one.name for one in registry.matching("openid4vc.issuance.completed")] == [
        "accounts.activate",
        "accounts.notify",
    ]
    assert [one.name for one in registry.matching("openid4vc.issuance.expired")] == ["accounts.notify"]
    assert registry.types == EVENT_TYPES
    assert registry.matching("openid4vc.issuance.revoked") == ()


async def yields_a_state() -> Any:
    yield 7


def opens() -> Any:
    yield


async def awaits(*arguments: Any) -> Any: ...


class Mailer:
    """A handler as each of the forms that can be called."""

    def __init__(self, *_: Any) -> None: ...

    async def send(self, event: Any, context: Any) -> None: ...

    async def __call__(self, event: Any, context: Any) -> None: ...


MAILER = Mailer()


def sends(mailer: Any, event: Any, context: Any) -> None: ...


def named(function: Any, name: str = "f", /, **hints: Any) -> Any:
    """Return the function under this name and with these annotations."""
    function.__name__, function.__annotations__ = name, hints
    return function


@pytest.mark.parametrize(("function", "message"), [
    (lambda event, context: None, "no usable name: '<lambda>'; define it with def, or choose a name="),
    (MAILER, "no usable name: '__call__'; define it"),
    (named(lambda: None), r"x\.f should take two arguments, \(event, context\)"),
    (yields, "generator"),
    (contextmanager(yields), "generator"),
    (Mailer, r"x\.Mailer is a class, which would only be instantiated"),
    (named(lambda context, event: None), r"x\.f takes \(context, event\): swap"),
    (named(lambda context, other: None), r"takes \(context, event\): swap"),
    (named(lambda other, event: None), r"takes \(context, event\): swap"),
])  # fmt: skip
def test_a_function_that_cannot_be_a_handler_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Handlers("x").on("*")(function)


@pytest.mark.parametrize(("function", "name", "is_asynchronous"), [
    (MAILER.send, "send", True),
    (named(Mailer(), "mail"), "mail", True),
    (partial(sends, MAILER), "sends", False),
    (partial(MAILER.send), "send", True),
    (named(partial(sends, MAILER), "mail"), "mail", False),
    (wraps(activate)(lambda *arguments: None), "activate", True),
    (wraps(notify)(awaits), "notify", True),
    (named(lambda event, context: None, "mail"), "mail", False),
    (named(lambda event, context: None, event="ForTypeCheckersOnly"), "f", False),
    (named(lambda event, context: None, **{"return": Awaitable}), "f", False),
    (named(lambda event, context: None, **{"return": Any}), "f", False),
])  # fmt: skip
def test_any_callable_can_be_a_handler(function: Any, name: str, is_asynchronous: bool) -> None:
    plugin = Handlers("x")
    plugin.on("*")(function)
    (handler,) = plugin
    assert (handler.name, handler.is_async, handler.at.partition(":")[0]) == (
        f"x.{name}", is_asynchronous, "handlers/test_handlers.py",
    )  # fmt: skip
    assert plugin.handler_of(MAILER.send if function == MAILER.send else function) is handler
    plugin.on("*", after=function)(last)
    assert [one.after for one in plugin] == [None, f"x.{name}"]


TYPED = ROOT / "tests/support/typed"


def test_handlers_that_type_checkers_accept_are_loaded() -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile((TYPED / "fits.py").read_text(), "fits.py", "exec"), names)
    loaded = ["for_issuances", "for_presentations", "in_a_thread", "for_either"]
    loaded += ["steps", "saves_in_a_thread", "for_trusted", "for_all"]
    assert [one.name for one in names["handlers"]] == [f"accounts.{name}" for name in loaded]


def test_on_needs_a_type_and_a_plugin_a_word() -> None:
    with pytest.raises(ValueError, match=r'write @handlers\.on\("openid4vc'):
        Handlers("x").on()
    for name in ("two words", "x" * 65):
        with pytest.raises(ValueError, match="should be a word"):
            Handlers(name)


def on(**options: Any) -> Handler:
    plugin: Any = Handlers("x")
    plugin.on("*", **options)(activate)
    (handler,) = plugin
    assert isinstance(handler, Handler)
    return handler


@pytest.mark.parametrize(("options", "said"), [
    ({"timeout": 0}, "timeout: should be a number of seconds over 0"),
    ({"timeout": float("nan")}, "timeout: should be a number"),
    ({"timeout": float("inf")}, "timeout: should be a number"),
    ({"timeout": "5"}, "timeout: should be a number"),
    ({"timeout": True}, "timeout: should be a number"),
    ({"retries": -1}, "retries: should be a whole number from 0"),
    ({"retries": 1.5}, "retries: should be a whole number from 0"),
    ({"concurrency": 0}, "concurrency: should be a whole number from 1"),
    ({"concurrency": True}, "concurrency: should be a whole number from 1"),
    ({"backoff": 5}, "backoff: should be a Backoff(first=…, longest=…)"),
    ({"give_up_on": "KeyError"}, "give_up_on: should be an exception class, or a tuple of these"),
    ({"give_up_on": (KeyError, SystemExit)}, "give_up_on: should be"),
    ({"condition": True}, "condition: should be a plain function of the event"),
    ({"condition": awaits}, "condition: should be a plain function of the event"),
    ({"condition": type("A", (), {"__call__": awaits})()}, "condition: should be a plain function of the"),
    ({"condition": lambda event: (yield)}, "condition: should be a plain function of the event"),
    ({"condition": lambda: True}, "condition: should be a plain function of the event"),
    ({"condition": notify}, "condition: should be a plain function of the event"),
    *(({"rate": rate}, 'rate: should be a number of runs a second, minute, hour or day: "5/s"')
      for rate in (10, "10", "10/m\n", "0/m", "10/w", "1.5/s", "-1/s", "10/m ", "m")),
    ({"after": "other"}, "is to run after x.other, which 'x' does not define above it"),
    ({"max_attempts": 5}, "max_attempts: is no option; there is timeout, retries, concurrency, rate, name, backoff, "),
])  # fmt: skip
def test_an_option_that_cannot_be_meant_is_named_with_the_handler(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=rf"x\.activate.*{re.escape(said)}"):
        on(**options)


def test_a_handler_can_run_after_one_that_stands_above_it() -> None:
    plugin: Any = Handlers("x")
    plugin.on("openid4vc.issuance.completed", "openid4vc.issuance.failed")(activate)
    plugin.on("openid4vc.issuance.completed", after=activate)(notify)
    with pytest.raises(ValueError, match=r"x\.last is to run after x\.notify, which is for other event types"):
        plugin.on("openid4vc.issuance.failed", after="notify")(last)
    plugin.on("*", after="x.notify")(last)
    assert [one.after for one in plugin] == [None, "x.activate", "x.notify"]


def test_name_of_a_handler_outlives_the_name_of_its_function() -> None:
    plugin: Any = Handlers("x")
    plugin.on("*", name="open-account")(activate)
    plugin.on("*", after=activate)(notify)
    plugin.on("*", after="open-account", name="renamed")(lambda event, context: None)
    names = [(one.name, one.after) for one in plugin]
    assert names == [("x.open-account", None), ("x.notify", "x.open-account"), ("x.renamed", "x.open-account")]
    with pytest.raises(ValueError, match=r"no usable name: 'open account'; define it with def, or choose a name="):
        plugin.on("*", name="open account")(last)


@pytest.mark.parametrize(("rate", "per_second"), [
    ("5/s", 5), ("30/m", 0.5), ("36/h", 0.01), ("864/d", 0.01), (None, None),
])  # fmt: skip
def test_rate_is_a_number_of_runs_in_a_second(rate: str | None, per_second: float | None) -> None:
    assert on(**({"rate": rate} if rate else {})).runs_per_second == per_second


def test_operator_replaces_options_of_one_handler() -> None:
    plugin: Any = Handlers("x")
    plugin.on("*", timeout=5, retries=3)(activate)
    plugin.on("*", timeout=5, after=activate)(notify)
    registry = Registry([plugin], {"x.notify": {"timeout": 90, "rate": "10/m"}})
    first, second = registry.matching("openid4vc.issuance.completed")
    assert (first.timeout, first.retries, first.limits) == (5, 3, "timeout=5 retries=3")
    assert (second.timeout, second.after, second.limits) == (90, "x.activate", "timeout=90 rate=10/m")


@pytest.mark.parametrize(("options", "said"), [
    ({"x.activat": {"timeout": 5}}, "x.activat is not loaded; did you mean x.activate?"),
    ({"q": {}}, "q is not loaded; there is x."),
    ({"x.activate": {"time_out": 5}}, "x.activate: time_out: is no option; there is timeout, retries, concurrency"),
    ({"x.activate": {"rate": "10"}}, "x.activate: rate: should be a number of runs"),
    ({"x.activate": {"name": "y"}}, "x.activate: name: is no option; there is timeout"),
    ({"x.activate": 5}, "x.activate: Input should be a valid dictionary"),
])  # fmt: skip
def test_wrong_options_of_an_operator_are_named(options: Any, said: str) -> None:
    plugin: Any = Handlers("x")
    plugin.on("*")(activate)
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        Registry([plugin], options)


QUICK = Backoff(first=3, longest=5)
SLOW = Backoff(first=3_600, longest=30 * 86_400)


@pytest.mark.parametrize(("options", "error", "attempt", "wait"), [
    ({"retries": 2, "backoff": QUICK}, ValueError(), 1, 3),
    ({"retries": 2, "backoff": QUICK}, ValueError(), 2, 5),
    ({"retries": 2}, ValueError(), 3, None),
    ({"retries": 99, "backoff": SLOW}, ValueError(), 12, 7 * 86_400),
    ({"give_up_on": KeyError}, KeyError("x"), 1, None),
    ({"give_up_on": (KeyError, LookupError)}, IndexError(), 1, None),
    ({"give_up_on": Exception}, Retry(after=30), 1, 30),
    ({"give_up_on": Exception, "backoff": QUICK}, PlatformPaused("x", operation="x"), 1, 3),
])  # fmt: skip
def test_retry_options_of_the_author_decide(
    options: dict[str, Any], error: Exception, attempt: int, wait: float | None
) -> None:
    one, chance = on(**options), lambda: 1.0
    decided = after_handler(
        error,
        attempt,
        max_attempts=one.max_attempts(12),
        backoff=one.backoff or BACKOFF,
        give_up_on=one.give_up_on,
        chance=chance,
    )
    assert (decided.after if isinstance(decided, Retry) else None) == wait


def test_a_plugin_has_one_function_for_start_up_and_one_for_the_end() -> None:
    plugin: Any = Handlers("x")
    plugin.startup(lambda: 1)
    plugin.shutdown(print)
    whole: Any = Handlers("z")
    whole.lifespan(yields_a_state)
    other, forms = Handlers[Any]("y"), (opens, contextmanager(opens), asynccontextmanager(yields))
    wrong: list[tuple[Any, Any, str]] = [
        (plugin.startup, lambda: 2, "'x' already has a startup function"),
        (plugin.shutdown, print, "'x' already has a shutdown function"),
        *(
            (other.startup, form, "the startup function is a generator or context manager: register it with @handlers")
            for form in forms
        ),
        (plugin.lifespan, yields_a_state, "'x' already has a startup function, at .*: keep it or them"),
        *(
            (way, print, "'z' already has a lifespan function, at .*: keep it or them")
            for way in (whole.startup, whole.shutdown)
        ),
        (whole.lifespan, yields_a_state, "'z' already has a lifespan function, at .*; do the work of both in one"),
        *(
            (other.lifespan, function, "the lifespan function should be an `async def` with a yield and no argument")
            for function in (opens, contextmanager(opens), activate, yields, lambda: None)
        ),
        (other.startup, lambda state: 1, "the startup function should take no argument"),
        (other.shutdown, lambda: None, "the shutdown function should take one argument, the state"),
    ]
    for hook, function, said in wrong:
        with pytest.raises(ValueError, match=said):
            hook(function)


@pytest.mark.parametrize(("function", "message"), [
    (named(lambda failure: None), r"x\.f should take two arguments, \(failure, context\)"),
    (named(lambda context, failure: None), r"x\.f takes \(context, failure\): swap"),
    (yields, r"x\.yields is a generator"),
])  # fmt: skip
def test_hook_of_failures_needs_a_failure_and_a_context(function: Any, message: str) -> None:
    plugin: Any = Handlers("x")
    with pytest.raises(ValueError, match=message):
        plugin.on_error(function)
    assert plugin.error_hooks == []


def test_a_module_here_comes_before_an_installed_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("installed", "here"):
        (tmp_path / folder).mkdir()
        text = f"import credhook, pstats\nh = credhook.Handlers('{folder}')"
        (tmp_path / folder / "accounts_twice.py").write_text(text)
    (tmp_path / "here/pstats.py").write_text("what the library's own name means stays so")
    monkeypatch.delitem(sys.modules, "pstats", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.chdir(tmp_path / "here")
    assert [one.name for one in loading.load(["accounts_twice"]).plugins] == ["here"]
    assert sys.path[-1] == str(tmp_path / "here")
    assert not [finder for finder in sys.meta_path if type(finder).__name__ == "_CurrentFolder"]


def test_handlers_that_two_modules_offer_are_one_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared_handlers.py").write_text("import credhook\nhandlers = accounts = credhook.Handlers('shared')\n")
    (tmp_path / "offers_again.py").write_text("from shared_handlers import handlers\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = loading.load(["shared_handlers", "offers_again:handlers"])
    assert [plugin.name for plugin in registry.plugins] == ["shared"]


def test_an_import_that_takes_long_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = "[one.join() for one in threading.enumerate() if isinstance(one, threading.Timer)]"
    (tmp_path / "slow_import.py").write_text(
        f"import threading, credhook\nx, y = map(credhook.Handlers, 'xy')\n{waits}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert loading.SLOW_SECONDS == 5
    monkeypatch.setattr(loading, "SLOW_SECONDS", 0.3)
    with capture_logs() as logs:
        loading.load(["slow_import:x"])
        (plugin,) = loading.load(["slow_import:y"]).plugins  # It is there already, and so never named.
    assert plugin.name == "y"
    assert all(one.finished.is_set() for one in threading.enumerate() if isinstance(one, threading.Timer))
    assert logs[0]["event"] == "handlers_load_slowly"
    assert logs[0]["at"][0].rpartition("/")[2].startswith("slow_import.py:3 ")
