import io
import json
import logging
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
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


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("debug", ["mine debug", "mine warning", "httpx warning"]),
        ("warning", ["mine warning", "httpx warning"]),
        ("error", []),
    ],
)
def test_the_level_holds_for_other_libraries_too(
    monkeypatch: pytest.MonkeyPatch, level: str, written: list[str]
) -> None:
    """Debug lines of those that log each request are never written."""
    monkeypatch.setenv("CREDHOOK_LOG_LEVEL", level)
    output = io.StringIO()
    configure_logs(output)
    for kind in ("debug", "warning"):
        getattr(structlog.get_logger("credhook"), kind)(f"mine {kind}")
        getattr(logging.getLogger("httpx"), kind)(f"httpx {kind}")
    assert [json.loads(line)["event"] for line in output.getvalue().splitlines()] == written


@pytest.mark.parametrize(("name", "value"), [("CREDHOOK_LOG", "xml"), ("CREDHOOK_LOG_LEVEL", "loud")])
def test_a_wrong_log_setting_ends_the_process_with_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        configure_logs(io.StringIO())
    assert end.value.code == 2
    assert name in capsys.readouterr().err


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


#: Names that structlog or Python's logging also use, and any other name.
NAMES = ("stack", "exception", "timestamp", "level", "logger", "positional_args", "ids")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_every_event_is_one_line_with_all_its_fields_whatever_they_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str, value: object
) -> None:
    monkeypatch.setenv("CREDHOOK_LOG", form)
    output = io.StringIO()
    configure_logs(output)
    structlog.get_logger("a").error("some_event", **dict.fromkeys(NAMES, value), **{EVIL: 1})
    logging.getLogger("other").warning("said %s", EVIL)
    lines = output.getvalue().removesuffix("\n").split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    assert "some_event" in lines[0]
    assert form == "console" or [name for name in NAMES if name not in lines[0]] == []
    assert "Jane" not in lines[0]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("text", "arguments", "fields"), [
    ("got %s", ("m1",), {"event": "got m1"}),
    ("%d of %(done)s", (1,), {"event": "%d of %(done)s", "positional_args": [1]}),
    ("%(done)s of 2", ({"done": 1},), {"event": "1 of 2"}),
    ("got %s: %s", ("m1", ValueError("Jane Doe")), {"event": "got m1: ValueError"}),
    ("got %s", ("m1", ValueError("Jane Doe")), {"event": "got %s", "positional_args": ["m1", "ValueError"]}),
    ("100 %", (), {"event": "100 %"}),
])  # fmt: skip
def test_arguments_are_put_into_the_text(text: str, arguments: tuple[Any, ...], fields: dict[str, Any]) -> None:
    output = io.StringIO()
    configure_logs(output)
    structlog.get_logger("a").bind(a=1).info(text, *arguments)
    assert json.loads(output.getvalue()).items() >= fields.items()


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


def test_a_coroutine_that_was_never_awaited_is_named_with_its_place() -> None:
    output = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logs(output)
        drops_a_coroutine()
    line = json.loads(output.getvalue())
    assert (line["event"], line["coroutine"]) == ("coroutine_not_awaited", "never_awaited")
    assert line["at"].startswith("unit/test_logs.py:")
    assert "await" in line["hint"]


def test_the_place_of_one_that_ends_with_its_handler_is_the_handlers() -> None:
    output = io.StringIO()
    configure_logs(output)
    run: Any = SimpleNamespace(at="app/handlers.py:5", fields=dict, dropped=())
    runs_now.set(run)
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
