import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from credhook import configure_logs

EVIL = 'x\r\n{"event": "forged"}\x1b[2J\u2028\u202e'


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


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
