"""What `credhook dev` shows of a worker's log."""

import json
from typing import Any

import pytest

from credhook.sandbox.local.dev_log import LogReader, warnings_of

EVENT = {
    "timestamp": "2026-11-22T12:00:00Z", "level": "info", "logger": "credhook.worker",
    "webhook_id": "m1", "event_type": "openid4vc.issuance.completed", "resource_id": "iss_1", "attempt": 1,
}  # fmt: skip


def line(event: str, **fields: Any) -> str:
    return json.dumps(EVENT | {"event": event} | fields)


def shown(*lines: str) -> list[str]:
    """The texts, without the time of day."""
    reader = LogReader()
    return [text.plain.partition("  ")[2].strip() for each in lines for text in reader.read(each)]


ROW = "issuance.completed          iss_1  "
FAILED = line("handler_failed", handler="a.two", error="ValueError", message="no", frames=["a.py:3 two"], ms=2.5)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([line("event_done", handlers=["a.one", "a.two"], ms=[1.0, 12.5])],
         [ROW + "a.one  done  1 ms", ROW + "a.two  done  12.5 ms"]),
        ([FAILED, line("event_waiting", handlers=["a.one"], ms=[1.0], seconds=2.5, error="ValueError")],
         [ROW + "a.one  done  1 ms", ROW + "a.two  waiting, again in 2.5 s  2.5 ms", "ValueError: no", "a.py:3 two"]),
        ([FAILED.replace('"attempt"', '"final": true, "attempt"'), line("event_waiting", seconds=5)],
         [ROW + "a.two  dead  2.5 ms", "ValueError: no", "a.py:3 two"]),
        ([line("fetch_failed", error="NotFound 404", message="NotFound 404"), line("event_waiting", seconds=1.0)],
         [ROW + "the details  waiting, again in 1.0 s", "NotFound 404"]),
        ([line("event_unhandled", lacking="any", handlers=[], ms=[])], [ROW + "no handler wants this type"]),
        ([line("event_unhandled", lacking=["a.late"], handlers=["a.one"], ms=[1.0])],
         [ROW + "a.one  done  1 ms", ROW + "a.late  not loaded here: it waits for a worker that has it"]),
        ([line("event_done", handlers=["a.one"], ms=[1.0], skipped=["a.two"])],
         [ROW + "a.one  done  1 ms", ROW + "a.two  skipped: its condition did not want it"]),
        ([line("handler_returned", handler="a.one", at="a/a.py:3", returned="int", hint="return nothing")],
         ["a.one  handler_returned  returned=int", "a/a.py:3", "return nothing"]),
        ([line("event_dead", error="WorkerDied")], [ROW + "dead: WorkerDied"]),
        ([line("event_handed_back")], [ROW + "handed back"]),
        ([line("account_opened", handler="a.one", status="verified")], ["a.one  account_opened  status=verified"]),
        ([line("worker_stopped"), ""], []),
    ],
)  # fmt: skip
def test_an_event_is_a_line_for_each_of_its_handlers(lines: list[str], expected: list[str]) -> None:
    assert shown(*lines) == expected


def test_a_worker_is_ready_once_its_plugins_have_started() -> None:
    reader = LogReader()
    (begins,) = reader.read(line("worker_started", handlers=["a.one"], starting=["a"]))
    assert begins.plain.endswith("  starting: a")
    assert not reader.ready
    (ready,) = reader.read(line("plugins_started", plugins=["a"]))
    assert ready.plain.endswith("  ready: a.one")
    assert reader.ready


@pytest.mark.parametrize("printed", ["print() of a handler", '{"json": "but no line of a log"}', "[red]markup[/red]"])
def test_what_a_handler_prints_is_shown_as_it_is(printed: str) -> None:
    assert [text.plain for text in LogReader().read(printed)] == [printed]


def test_what_has_failed_is_remembered_until_it_is_done() -> None:
    reader = LogReader()
    for event in ("event_waiting", "event_dead", "event_data_gone"):
        reader.read(line(event, webhook_id=event, seconds=1))
    assert reader.failed == {"event_waiting", "event_dead", "event_data_gone"}
    reader.read(line("event_done", webhook_id="event_dead"))
    assert reader.failed == {"event_waiting", "event_data_gone"}


def test_another_process_is_heard_of_when_something_is_wrong() -> None:
    assert warnings_of(line("delivery_accepted")) == []
    assert warnings_of("no line") == []
    (text,) = warnings_of(line("delivery_refused", level="warning", reason="no signature"))
    assert "delivery_refused  reason=no signature" in text.plain
