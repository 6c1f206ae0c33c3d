"""What a log line holds, and whose line is shown: the author's own comes before a library's or ours that has raised."""

import io
import json
import logging
import sys
import threading
import types
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from credhook.cli import main
from credhook.logs import _MAX_PLACES, configure_logs, insist_on_logs
from credhook.logs.places import is_authors, loaded_from, places, runs_now
from credhook.store import State
from credhook.worker.api.models import read_only
from credhook.worker.attempt import running

EVIL = 'x\r\n{"event": "forged"}\x1b[2J\u2028\u202e\u200b\u2060\ufeff'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=["json", "console"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the next set-up write lines of this form."""
    monkeypatch.setenv("CREDHOOK_LOG", request.param)
    return str(request.param)


def configured() -> io.StringIO:
    """Set up the logs, and return the stream that they are written to."""
    output = io.StringIO()
    configure_logs(output)
    return output


def fail() -> None:
    raise ValueError("Jane Doe, born 1990")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_an_error_is_its_class_and_its_places_and_nothing_that_it_says(stream: type[io.StringIO]) -> None:
    output = stream()
    configure_logs(output)
    try:
        fail()
    except ValueError as error:
        structlog.get_logger("a").error("handler_failed", exc_info=error, error="ValueError 404", hint="")
        logging.getLogger("other").exception("failed")
        raised = sys.exc_info()
    logging.getLogger("other").error("failed", exc_info=raised)
    text = output.getvalue()
    assert text.startswith("{") == (stream is io.StringIO)
    assert text.count("\n") == 3
    assert text.count("ValueError") == 3
    assert ("ValueError 404" in text, "hint" in text) == (True, False)
    assert "test_logs.py" in text
    assert "Jane" not in text


def test_uncaught_error_is_one_log_line() -> None:
    output = configured()
    for error in (ValueError("Jane Doe"), SystemExit(3), KeyboardInterrupt()):
        sys.excepthook(type(error), error, None)
        caught: Any = SimpleNamespace(exc_value=error)
        threading.excepthook(caught)
        sys.unraisablehook(caught)
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    events = "uncaught", "thread_failed", "unraisable"
    assert [(line["event"], line["error"]) for line in lines] == [(event, "ValueError") for event in events]


def test_off_a_terminal_each_line_is_json_with_a_stable_name() -> None:
    output = configured()
    structlog.get_logger("a").debug("too_much")
    with structlog.contextvars.bound_contextvars(account=7):
        structlog.get_logger("a").info("event_accepted", webhook_id="m")
    line = json.loads(output.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "event_accepted", "level": "info", "logger": "a", "webhook_id": "m", "account": 7}


@pytest.mark.parametrize("name", ["debug", "info", "warning", "error", "exception", "critical", "fatal", "log"])
async def test_every_method_of_a_logger_writes_its_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("CREDHOOK_LOG_LEVEL", "debug")
    output, log = configured(), structlog.get_logger("a")
    level = [logging.INFO] if name == "log" else []
    getattr(log, name)(*level, "sync")
    await getattr(log, f"a{name}")(*level, "async")
    assert [json.loads(line)["event"] for line in output.getvalue().splitlines()] == ["sync", "async"]


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("debug", ["mine debug", "mine warning", "httpx warning"]),
        ("warning", ["mine warning", "httpx warning"]),
        ("error", []),
        ("", ["mine warning", "httpx warning"]),  # As an unset variable of Compose is passed on.
    ],
)
def test_the_level_holds_for_other_libraries_too(
    monkeypatch: pytest.MonkeyPatch, level: str, written: list[str]
) -> None:
    """Debug lines of those that log each request are never written."""
    monkeypatch.setenv("CREDHOOK_LOG", "")
    monkeypatch.setenv("CREDHOOK_LOG_LEVEL", level)
    output = configured()
    assert structlog.get_logger("credhook").isEnabledFor(logging.DEBUG) == (level == "debug")
    for kind in ("debug", "warning"):
        getattr(structlog.get_logger("credhook"), kind)(f"mine {kind}")
        getattr(logging.getLogger("httpx"), kind)(f"httpx {kind}")
    for name in ("httpcore.http11", "uvicorn.error", "rq.worker", "rq.scheduler", "rq.queue", "rq.job"):
        logging.getLogger(name).info("a request, or a start")
    assert [json.loads(line)["event"] for line in output.getvalue().splitlines()] == written


@pytest.mark.parametrize(("name", "value"), [("CREDHOOK_LOG", "xml"), ("CREDHOOK_LOG_LEVEL", "loud")])
def test_a_wrong_log_setting_ends_the_process_with_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        main(["status"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"credhook: {name}: Input should be ")


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
    "list that cannot be written": [2**70, ValueError("Jane Doe")],
    "tuple that cannot be written": (2**70, ValueError("Jane Doe")),
    "dict that cannot be written": {"a": 2**70, "b": ValueError("Jane Doe")},
    "half a character": "\ud83d",
    "number of many digits": 2**70,
    "no number": float("nan"),
    "enum of text": State.DONE,
    "object that sprawls": Sprawling(),
    "object that cannot be shown": Unspeakable(),
}

#: Names that structlog or Python's logging also use, and any other name.
NAMES = ("stack", "exception", "timestamp", "level", "logger", "positional_args", "ids")


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_every_event_is_one_line_with_all_its_fields_whatever_they_hold(
    capsys: pytest.CaptureFixture[str], form: str, value: object
) -> None:
    output = configured()
    structlog.get_logger("a").error("some_event", **dict.fromkeys(NAMES, value), **{EVIL: 1})
    logging.getLogger("other").warning("said %s", EVIL)
    lines = output.getvalue().removesuffix("\n").split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    assert "some_event" in lines[0]
    assert form == "console" or [name for name in NAMES if name not in lines[0]] == []
    assert "Jane" not in lines[0]
    assert capsys.readouterr().err == ""


def test_extra_fields_of_an_author_are_kept_within_bounds() -> None:
    output = configured()
    extra = {
        "order": "A-7",
        "lines": [1, 2],
        "level": "mine",
        "event": "mine",
        "long": "x" * 5_000,
        "deep": ["y" * 5_000],
    }
    logging.getLogger("shop").info("sent", extra=extra | {f"more{number}": number for number in range(50)})
    line = json.loads(output.getvalue())
    assert (line["event"], line["level"], line["order"], line["lines"]) == ("sent", "info", "A-7", [1, 2])
    assert (len(line["long"]), len(line["deep"])) == (1_000, 1_000)
    assert len(output.getvalue()) < 3_000


def test_extra_fields_of_a_library_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    output = configured()
    monkeypatch.setattr("credhook.logs.is_authors", lambda _: False)
    logging.getLogger("library").info("sent", extra={"holder": "Jane Doe"})
    assert "Jane" not in output.getvalue()


def test_a_value_that_cannot_be_written_costs_no_other_value() -> None:
    output = configured()
    values = {"pages": {1: 10}, "ids": ["a"], "at": ["caf\udce9.py:1", 2], "claims": read_only([{"name": "Jane"}])}
    structlog.get_logger("a").error("some_event", **values, many=2**70)
    line = json.loads(output.getvalue())
    assert (line["pages"], line["ids"], line["at"]) == ({"1": 10}, ["a"], ["caf\udce9.py:1", 2])
    assert (line["claims"], line["many"]) == ("ReadOnlyList", 2**70)


@pytest.mark.parametrize(("text", "arguments", "fields"), [
    ("got %s", ("m1",), {"event": "got m1"}),
    ("%d of %(done)s", (1,), {"event": "%d of %(done)s", "positional_args": [1]}),
    ("%(done)s of 2", ({"done": 1},), {"event": "1 of 2"}),
    ("%(of)s", ({"done": 1},), {"event": "%(of)s", "positional_args": [{"done": 1}]}),
    ("100% (of) %s", ("m1",), {"event": "100% (of) %s", "positional_args": ["m1"]}),
    ("got %s: %s", ("m1", ValueError("Jane Doe")), {"event": "got m1: ValueError"}),
    ("got %s", ("m1", ValueError("Jane Doe")), {"event": "got %s", "positional_args": ["m1", "ValueError"]}),
    ("100 %", (), {"event": "100 %"}),
])  # fmt: skip
def test_arguments_are_put_into_the_text(text: str, arguments: tuple[Any, ...], fields: dict[str, Any]) -> None:
    output = configured()
    structlog.get_logger("a").bind(a=1).info(text, *arguments)
    line = json.loads(output.getvalue())
    assert {name: line.get(name) for name in ("event", "positional_args")} == {"positional_args": None, **fields}


@pytest.mark.usefixtures("form")
def test_a_warning_is_its_category_and_its_place_and_nothing_that_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        output = configured()
        warnings.warn("Jane Doe, born 1990", FutureWarning, stacklevel=1)
    (line,) = output.getvalue().splitlines()
    for word in ("python_warning", "FutureWarning", "logs/test_logs.py:"):
        assert word in line
    assert "Jane" not in line
    assert "Jane" not in capsys.readouterr().err


def test_the_place_of_one_that_ends_with_its_handler_is_the_handlers() -> None:
    output = configured()
    run: Any = SimpleNamespace(at="app/handlers.py:5", fields=lambda: {"attempt": 1, "webhook_id": "m"}, dropped=())
    token = runs_now.set(run)  # Later tests of this process have no handler.
    for category, text in ((RuntimeWarning, "coroutine 'a.<locals>.b' was never awaited"), (UserWarning, "Jane Doe")):
        warnings.showwarning(category(text), category, running.__file__, 1)
    structlog.get_logger("a").info("own", webhook_id="another")
    runs_now.reset(token)
    first, second, own = map(json.loads, output.getvalue().splitlines())
    assert (own["attempt"], own["webhook_id"], second["webhook_id"]) == (1, "another", "m")
    assert (first["event"], first["at"]) == ("coroutine_not_awaited", "app/handlers.py:5")
    assert (second["event"], second["at"]) == ("python_warning", "attempt/running.py:1")
    assert "Jane" not in output.getvalue()


@pytest.mark.usefixtures("form")
def test_failed_log_line_is_replaced_by_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = configured()
    logging.getLogger("other").warning("%d of %s", "Jane Doe")  # noqa: PLE1206  That is the point.
    (line,) = output.getvalue().splitlines()
    for word in ("log_failed", "other", "TypeError", "logs/test_logs.py:"):
        assert word in line
    assert "Jane" not in line + capsys.readouterr().err


def test_a_stream_that_is_gone_is_no_reason_to_fail_or_to_print(capsys: pytest.CaptureFixture[str]) -> None:
    output = configured()
    output.close()
    structlog.get_logger("a").error("event", claim="Jane Doe")
    assert capsys.readouterr().err == ""


def test_log_cuts_callbacks_that_asyncio_quotes() -> None:
    output = configured()
    for logger, text in (
        ("asyncio", "Exception in callback fail({'name': 'Jane'}) at plugin.py:3\nhandle: <Handle>"),
        *(("asyncio", f"Task failed {quoted}") for quoted in ("<Task 'Jane'>", "{'name': 'Jane'}", "exception=Jane")),
        *(("other", f"gave up (twice){more}") for more in ("\nJane", "exception=ValueError('Jane')")),
    ):
        logging.getLogger(logger).error(text)
    events = [json.loads(line)["event"] for line in output.getvalue().splitlines()]
    assert events == ["Exception in callback fail", *["Task failed "] * 3, *["gave up (twice)"] * 2]


OURS = str(Path(is_authors.__wrapped__.__code__.co_filename).parent / "worker" / "client.py")
LIBRARY = "/srv/app/.venv/lib/python3.11/site-packages/httpx/client.py"


def shown(*steps: tuple[str, str]) -> list[str]:
    """What is shown of an error that came through functions of these files and names, the outermost first."""
    call: Any = None  # The innermost function calls it, and fails.
    for file, name in reversed(steps):
        scope: dict[str, Any] = {"called": call}
        exec(compile(f"def {name}():\n    called()\n", file, "exec"), scope)
        call = scope[name]
    with pytest.raises(TypeError) as caught:
        call()
    error = caught.value.with_traceback(caught.tb.tb_next)  # Without this function.
    return [place.rpartition(" ")[2] for place in places(error, _MAX_PLACES)]


US = [(OURS, f"us{number}") for number in range(5)]
THEM = [(LIBRARY, f"them{number}") for number in range(3)]
AUTHOR = [("/srv/app/handlers.py", f"author{number}") for number in range(6)]


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        ([US[0], AUTHOR[0]], ["author0"]),
        ([US[0], AUTHOR[0], *US[1:]], ["author0", "us4"]),
        ([US[0], AUTHOR[0], AUTHOR[1], US[1], *THEM], ["author0", "author1", "them2"]),
        ([US[0], *AUTHOR, US[1]], ["author3", "author4", "author5", "us1"]),
        ([US[0], *AUTHOR], ["author2", "author3", "author4", "author5"]),
        ([US[0], AUTHOR[0], THEM[0], AUTHOR[1], US[1]], ["author0", "author1", "us1"]),
        ([*US, *THEM], ["us4", "them0", "them1", "them2"]),
        ([AUTHOR[0], *[AUTHOR[1]] * 9], ["author0", "author1"]),  # A recursion stands there once.
        ([US[0]], ["us0"]),
    ],
)
def test_the_authors_own_lines_come_before_what_they_called(steps: list[tuple[str, str]], names: list[str]) -> None:
    assert shown(*steps) == names


@pytest.mark.parametrize("file", [OURS, LIBRARY, LIBRARY.replace("site-", "dist-"), types.__file__, "<string>"])
def test_library_files_are_not_author_code(file: str | None) -> None:
    for module in ("nowhere_to_be_found", "credhook.worker.handlers.logging_handler", "__main__", "os"):
        loaded_from(module)
    assert not is_authors(str(file))


def test_a_package_is_its_authors_once_handlers_were_loaded_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    for package in ("accounts", "accounts_of_others"):
        (installed / package).mkdir(parents=True)
        (installed / package / "__init__.py").touch()
    (installed / "alone.py").touch()
    monkeypatch.syspath_prepend(installed)
    handlers = str(installed / "accounts" / "handlers.py")
    assert not is_authors(handlers)
    for module in ("accounts.handlers", "alone"):
        loaded_from(module)
    assert all(map(is_authors, (handlers, str(installed / "alone.py"))))
    assert not is_authors(str(installed / "accounts_of_others" / "handlers.py"))


def test_the_line_of_a_stop_iteration_in_a_coroutine_is_the_authors() -> None:
    scope: dict[str, Any] = {}
    exec(compile("async def looks():\n    next(iter(()))\n", "/srv/app/handlers.py", "exec"), scope)
    with pytest.raises(RuntimeError) as caught:
        scope["looks"]().send(None)
    assert places(caught.value.with_traceback(None), 4) == ["app/handlers.py:2 looks"]


@pytest.mark.parametrize("way", ["basicConfig", "another handler", "processors", "structlog"])
def test_logs_are_configured_again_after_other_code(capsys: pytest.CaptureFixture[str], way: str) -> None:
    """A start-up function configures logging as it does elsewhere. The lines must hold no message of an error."""
    configure_logs()
    kept = logging.NullHandler()
    logging.getLogger().addHandler(kept)
    if way == "basicConfig":
        logging.basicConfig(level="INFO", force=True, stream=sys.stderr)
        logging.getLogger().addHandler(kept)
    elif way == "another handler":
        logging.getLogger().addHandler(logging.StreamHandler())
    elif way == "processors":
        structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()])
    else:
        structlog.configure(wrapper_class=structlog.BoundLogger)
    insist_on_logs()
    capsys.readouterr()
    try:
        int("a claim")
    except ValueError:
        logging.getLogger("library").exception("it failed")
        structlog.get_logger("ours").exception("ours_failed")
    lines = capsys.readouterr().err
    assert "a claim" not in lines
    assert len(lines.splitlines()) == 2
    assert kept in logging.getLogger().handlers
    logging.getLogger().removeHandler(kept)


def test_logs_that_nobody_has_changed_stay() -> None:
    output = io.StringIO()
    configure_logs(output)
    handlers = list(logging.getLogger().handlers)
    insist_on_logs()
    assert logging.getLogger().handlers == handlers
