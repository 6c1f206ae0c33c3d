import sys
from pathlib import Path
from typing import Any

import pytest

from credhook.events import EVENT_TYPES
from credhook.worker.handlers.loading import load
from credhook.worker.handlers.registry import Handlers, Registry


async def activate(event: Any, context: Any) -> None: ...


def notify(event: Any, context: Any) -> None: ...


def no_arguments() -> None: ...


async def yields(event: Any, context: Any) -> Any:
    yield


def test_a_handler_is_found_by_the_types_that_it_wants() -> None:
    accounts = Handlers("accounts")
    accounts.on("openid4vc.issuance.completed", "openid4vc.verification.data")(activate)
    accounts.on("*")(notify)
    registry = Registry([accounts])
    assert [one.name for one in registry.matching("openid4vc.issuance.completed")] == [
        "accounts.activate",
        "accounts.notify",
    ]
    assert [one.name for one in registry.matching("openid4vc.issuance.expired")] == ["accounts.notify"]
    assert registry.types == EVENT_TYPES
    assert registry.matching("openid4vc.issuance.revoked") == ()


def test_plain_functions_run_in_a_thread_and_coroutines_on_the_loop() -> None:
    both = Handlers("both")
    both.on("*")(activate)
    both.on("*")(notify)
    assert [one.is_async for one in both] == [True, False]


def test_the_decorated_function_stays_itself() -> None:
    assert Handlers("x").on("*")(activate) is activate


@pytest.mark.parametrize(("function", "message"), [
    (lambda event, context: None, "no usable name"),
    (no_arguments, r"x\.no_arguments should take two arguments, \(event, context\)"),
    (yields, "generator"),
])  # fmt: skip
def test_a_function_that_cannot_be_a_handler_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Handlers("x").on("*")(function)


def test_on_needs_a_type_and_a_plugin_a_word() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Handlers("x").on()
    with pytest.raises(ValueError, match="should be a word"):
        Handlers("two words")


def test_a_fresh_install_logs_every_event() -> None:
    registry = load()
    assert [one.name for one in registry.handlers] == ["log.event"]
    assert registry.types == EVENT_TYPES


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module that can be imported as `name`."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        return name

    return write


GOOD = "from credhook import Handlers\nhandlers = Handlers('good')\n@handlers.on('*')\ndef f(e, c): ...\n"


def test_a_module_may_be_named_with_or_without_its_object(plugin: Any) -> None:
    plugin("plugin_good", GOOD)
    for name in ("plugin_good", "plugin_good:handlers"):
        assert [one.name for one in load([name]).handlers] == ["good.f"]
