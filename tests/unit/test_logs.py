import ast
import io
import json
import logging
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from credhook.logs import configure_logs
from credhook.logs.places import runs_now
from credhook.store import State
from credhook.worker.attempt import running

EVIL = 'x\r\n{"event": "forged"}\x1b[2J\u2028\u202e'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


FORMS = ("json", "console")


def fail() -> None:
    raise ValueError("Jane Doe, born 1990")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_no_value_ends_the_line_or_acts_on_the_terminal(stream: type[io.StringIO]) -> None:
    output = stream()
    configure_logs(output)
    structlog.get_logger("a").info("event_accepted", webhook_id=EVIL, ids=[EVIL], **{EVIL: 1})
    logging.getLogger("other").warning("said %s", EVIL)
    text = output.getvalue()
    assert text.count("\n") == 2
    for character in ("\r", "\x1b[2J", "\u2028", "\u202e"):
        assert character not in text


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_an_error_is_its_class_and_its_places_and_nothing_that_it_says(stream: type[io.StringIO]) -> None:
    output = stream()
    configure_logs(output)
    try:
        fail()
    except ValueError as error:
        structlog.get_logger("a").error("handler_failed", exc_info=error)
        logging.getLogger("other").exception("failed")
    text = output.getvalue()
    assert text.count("\n") == 2
    assert text.count("ValueError") == 2
    assert "test_logs.py" in text
    assert "Jane" not in text


def test_off_a_terminal_each_line_is_json_with_a_stable_name() -> None:
    output = io.StringIO()
    configure_logs(output)
    structlog.get_logger("credhook.receiver").info("event_accepted", webhook_id="m")
    line = json.loads(output.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "event_accepted", "level": "info", "logger": "credhook.receiver", "webhook_id": "m"}


@pytest.mark.parametrize(("name", "value"), [("CREDHOOK_LOG", "xml"), ("CREDHOOK_LOG_LEVEL", "loud")])
def test_a_wrong_log_setting_ends_the_process_with_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        configure_logs(io.StringIO())
    assert end.value.code == 2
    assert name in capsys.readouterr().err


ROOT = Path(__file__).parents[2]
ROOMS = ("credhook", "receiver", "worker", "sandbox")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
#: What does not hold it logs nothing, and is not parsed.
CALL = re.compile(rf"\.\s*(?:{'|'.join(LEVELS)})\b")


@pytest.fixture(scope="module")
def logged() -> dict[str, set[str]]:
    """The names of the fields of each event that our code logs."""
    found: dict[str, set[str]] = {}
    for text in [path.read_text() for room in ROOMS for path in (ROOT / room).rglob("*.py")]:
        for node in ast.walk(ast.parse(text)) if CALL.search(text) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                for name in names(node.args[0]) if node.args else ():
                    found.setdefault(name, set()).update(one.arg for one in node.keywords if one.arg)
    return found


def names(event: ast.expr) -> list[str]:
    """What stands there in so many words, also as one of two, or as the beginning of it."""
    return [one.value for one in ast.walk(event) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


class Unspeakable:
    def __repr__(self) -> str:
        raise ValueError("Jane Doe")


class Sprawling:
    def __repr__(self) -> str:
        return "one\ntwo\x1b[2J"


@dataclass
class Spelled:
    """Its repr hides what orjson would spell out."""

    name: str = "Jane Doe"

    def __repr__(self) -> str:
        return "Spelled()"


CIRCLE: list[Any] = ["round"]
CIRCLE.append(CIRCLE)

#: What a field may hold, in our lines and in a handler's.
VALUES: dict[str, Any] = {
    "text": "text",
    "number": 1.5,
    "nothing": None,
    "list": ["a b", 1],
    "list of dicts": [{"webhook_id": "m"}],
    "dict of odd keys": {(1, 2): {"a": [b"x"]}},
    "bytes": b"x",
    "error": ValueError("Jane Doe"),
    "dataclass": Spelled(),
    "dict of dataclasses": {"a": [Spelled()]},
    "evil deep within": {"a": [{EVIL: EVIL}]},
    "list that holds itself": CIRCLE,
    "dict that holds such a list": {"a": CIRCLE},
    "half a character": "\ud83d",
    "number of many digits": 2**70,
    "no number": float("nan"),
    "enum of text": State.DONE,
    "object that sprawls": Sprawling(),
    "object that cannot be shown": Unspeakable(),
}


def test_the_events_are_found_at_all(logged: dict[str, set[str]]) -> None:
    assert logged["loop_blocked"] == {"pid", "seconds", "stack", "hint"}
    assert {"delivery_refused", "events_", "worker_suspended", "worker_resumed", "python_warning"} <= logged.keys()


@pytest.mark.parametrize("form", FORMS)
def test_every_event_is_one_line_with_all_its_fields_whatever_they_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], logged: dict[str, set[str]], form: str
) -> None:
    monkeypatch.setenv("CREDHOOK_LOG", form)
    of_a_handler = {"stack", "exception", "timestamp", "level", "logger", "positional_args"}
    for event, fields in {**logged, "of a handler": of_a_handler}.items():
        output = io.StringIO()
        configure_logs(output)
        for value in VALUES.values():
            structlog.get_logger("a").error(event, **dict.fromkeys(fields - {"exc_info"}, value))
        lines = output.getvalue().removesuffix("\n").split("\n")
        assert len(lines) == len(VALUES)
        for line in lines:
            assert event in line
            assert [name for name in fields - {"exc_info"} if name not in line and form == "json"] == []
            assert "Jane" not in line
            assert "\x1b" not in line
            assert line.isprintable()
        assert event == "log_failed" or "log_failed" not in output.getvalue()
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("method", "level"),
    [
        ("debug", "debug"),
        ("info", "info"),
        ("warning", "warning"),
        ("warn", "warning"),
        ("error", "error"),
        ("exception", "error"),
        ("critical", "critical"),
        ("fatal", "critical"),
    ],
)
def test_a_handlers_logger_has_all_the_methods_of_a_logger(
    monkeypatch: pytest.MonkeyPatch, method: str, level: str
) -> None:
    monkeypatch.setenv("CREDHOOK_LOG_LEVEL", "debug")
    output = io.StringIO()
    configure_logs(output)
    getattr(structlog.get_logger("a").bind(webhook_id="m"), method)("said")
    assert (line := json.loads(output.getvalue()))["event"] == "said"
    assert line["level"] == level


@pytest.mark.parametrize("form", FORMS)
def test_a_stack_is_shown_on_its_line_in_either_form(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("CREDHOOK_LOG", form)
    output = io.StringIO()
    configure_logs(output)
    structlog.get_logger("a").error("loop_blocked", stack=["plugin.py:3 careless", "main.py:9 live"], seconds=3.1)
    (line,) = output.getvalue().splitlines()
    for word in ("loop_blocked", "stack", "plugin.py:3 careless", "main.py:9 live", "3.1"):
        assert word in line


@pytest.mark.parametrize("form", FORMS)
def test_a_warning_is_its_category_and_its_place_and_nothing_that_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    monkeypatch.setenv("CREDHOOK_LOG", form)
    output = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logs(output)
        warnings.warn("Jane Doe, born 1990", FutureWarning, stacklevel=1)
    (line,) = output.getvalue().splitlines()
    for word in ("python_warning", "FutureWarning", "unit/test_logs.py:"):
        assert word in line
    assert "Jane" not in line
    assert "Jane" not in capsys.readouterr().err


async def never_awaited() -> None: ...


def drops_a_coroutine() -> None:
    never_awaited()  # type: ignore[unused-coroutine]


def drops_it_when_it_ends() -> None:
    kept = never_awaited()  # noqa: F841  That is the point.


@pytest.mark.parametrize("function", [drops_a_coroutine, drops_it_when_it_ends])
def test_a_coroutine_that_was_never_awaited_is_named_with_its_place(function: Callable[[], None]) -> None:
    output = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logs(output)
        function()
    line = json.loads(output.getvalue())
    assert (line["event"], line["coroutine"]) == ("coroutine_not_awaited", "never_awaited")
    assert line["at"].startswith("unit/test_logs.py:")
    assert "await" in line["hint"]


def test_the_place_of_one_that_ends_with_its_handler_is_the_handlers() -> None:
    output = io.StringIO()
    configure_logs(output)
    runs_now.set("app/handlers.py:5")
    for category, text in ((RuntimeWarning, "coroutine 'A.b' was never awaited"), (UserWarning, "Jane Doe")):
        warnings.showwarning(category(text), category, running.__file__, 1)
    first, second = map(json.loads, output.getvalue().splitlines())
    assert first["at"] == "app/handlers.py:5"
    assert (second["event"], second["at"]) == ("python_warning", "attempt/running.py:1")
    assert "Jane" not in output.getvalue()


@pytest.mark.parametrize("form", FORMS)
def test_a_line_that_cannot_be_made_is_named_by_its_place_and_nothing_of_it_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    monkeypatch.setenv("CREDHOOK_LOG", form)
    output = io.StringIO()
    configure_logs(output)
    logging.getLogger("other").warning("%d of %s", "Jane Doe")  # noqa: PLE1206  That is the point.
    (line,) = output.getvalue().splitlines()
    for word in ("log_failed", "other", "TypeError", "unit/test_logs.py:"):
        assert word in line
    assert "Jane" not in line + capsys.readouterr().err


def test_a_stream_that_is_gone_is_no_reason_to_fail_or_to_print(capsys: pytest.CaptureFixture[str]) -> None:
    output = io.StringIO()
    configure_logs(output)
    output.close()
    structlog.get_logger("a").error("event", claim="Jane Doe")
    assert capsys.readouterr().err == ""


def test_what_asyncio_quotes_of_a_callback_is_cut() -> None:
    output = io.StringIO()
    configure_logs(output)
    logging.getLogger("asyncio").error("Exception in callback fail({'name': 'Jane'}) at plugin.py:3\nhandle: <Handle>")
    assert json.loads(output.getvalue())["event"] == "Exception in callback fail"
