"""What `credhook dev` shows of a worker's log."""

import json
from typing import Any

import pytest

from credhook.sandbox.local.dev_log import LogReader, warnings_of

EVENT = {
    "timestamp": "2026-11-22T12:00:00Z", "level": "info", "logger": "credhook.worker",
    "webhook_id": "m1", "event_type": "openid4vc.issuance.completed", "resource_id": "iss_1", "attempt": 1,
}  # fmt: skip
ROW = "issuance.completed  iss_1  "


def line(event: str, **fields: Any) -> str:
    return json.dumps(EVENT | {"event": event} | fields)


@pytest.mark.parametrize(
    ("logged", "first", "below"),
    [
        (line("event_done", handlers=["a.one", "a.two"], ms=[1.0, 12.5]),
         ROW + "done  handlers=a.one, a.two  ms=1.0, 12.5", []),
        (line("handler_failed", handler="a.two", error="ValueError", message="no", frames=["a.py:3 two"], ms=2.5),
         ROW + "a.two  failed  error=ValueError  ms=2.5", ["no", "a.py:3 two"]),
        (line("handler_failed", handler="a.two", error="GiveUp", message="", frames=[], at=["lib.py:1 f"], final=True),
         ROW + "a.two  failed  error=GiveUp  final=True", ["lib.py:1 f"]),
        (line("event_waiting", handlers=[], seconds=2.5, error="ValueError"),
         ROW + "waiting  seconds=2.5  error=ValueError", []),
        (line("fetch_failed", error="NotFound 404", message="NotFound 404", cause="c1"),
         ROW + "the details cannot be fetched  error=NotFound 404", ["NotFound 404"]),
        (line("event_unhandled", lacking=["a.late"], handlers=["a.one"], ms=[1.0], hint="It waits"),
         ROW + "no handler for it  lacking=a.late  handlers=a.one  ms=1.0", ["It waits"]),
        (line("handler_returned", handler="a.one", at="a/a.py:3", returned="int", hint="return nothing"),
         ROW + "a.one  handler_returned  returned=int", ["a/a.py:3", "return nothing"]),
        (line("account_opened", handler="a.one", number=0), ROW + "a.one  account_opened  number=0", []),
        (line("worker_started", handlers=["a.one"], queue="q"), ROW + "ready  handlers=a.one", []),
        (line("worker_started", handlers=["a.one"], starting=["a"]), ROW + "starting  handlers=a.one  starting=a", []),
    ],
)  # fmt: skip
def test_a_log_line_is_a_line_with_its_error_below(logged: str, first: str, below: list[str]) -> None:
    shown, *rest = LogReader().read(logged)
    assert shown.partition("  ")[2] == first
    assert [text.strip() for text in rest] == below


@pytest.mark.parametrize("printed", ["print() of a handler", '{"json": "but no line of a log"}', "[red]markup[/red]"])
def test_what_a_handler_prints_is_shown_as_it_is(printed: str) -> None:
    assert LogReader().read(printed) == [printed]
    assert LogReader().read(line("worker_stopped")) == LogReader().read("") == []


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
    assert "delivery_refused  reason=no signature" in text
