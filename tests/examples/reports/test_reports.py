"""Failed handlers are reported to a collector on this machine."""

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest
import reports
import sentry_sdk

from credhook import FailedRun, FetchedEvent, Handlers, Issuance, SyncContext
from credhook.testing import event, run

COMPLETED: Final = "openid4vc.issuance.completed"


class Collector:
    """Stands for Sentry: takes envelopes, and keeps the reports in them."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        taken = self.reports

        class Envelopes(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                items = [json.loads(line) for line in self.decoded(body).splitlines() if line]
                taken.extend(item for item in items if "level" in item)
                self.send_response(200)
                self.end_headers()

            def decoded(self, body: bytes) -> bytes:
                return gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Envelopes)

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.server.server_port}/1"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    monkeypatch.setenv("SENTRY_DSN", collector.dsn)
    reports.connect()
    yield collector
    sentry_sdk.get_client().close(timeout=3)
    collector.server.shutdown()
    collector.server.server_close()
    thread.join()


def test_given_up_event_is_reported_without_claims(collector: Collector) -> None:
    result = run(reports.count_credentials, event(COMPLETED, "empty", webhook_id="m1"), state=None)
    assert (result.outcome, result.cause) == ("dead", "IndexError")
    reports.disconnect(None)
    failed, lost = collector.reports
    assert failed["tags"] == {"handler": "reports.count_credentials", "event": COMPLETED, "attempt": 1}
    assert (failed["level"], failed["extra"]) == ("error", {"webhook_id": "m1"})
    (error,) = failed["exception"]["values"]
    assert (error["type"], error["value"]) == ("IndexError", "")
    assert error["stacktrace"]["frames"][-1]["function"] == "count_credentials"
    assert "vars" not in json.dumps(failed)
    assert lost["message"] == "reports.count_credentials was given up for m1"


def test_plugin_of_its_own_reports_through_the_same_function(collector: Collector) -> None:
    accounts = Handlers("accounts")
    accounts.on_error(reports.report)

    @accounts.on(COMPLETED)
    def activate(event: FetchedEvent[Issuance], context: SyncContext) -> None:
        raise ConnectionError(event.resource_id)

    failing = event(COMPLETED)
    assert run(activate, failing).outcome == "waiting"
    reports.disconnect(None)
    (warning,) = collector.reports
    assert (warning["level"], warning["tags"]["handler"]) == ("warning", "accounts.activate")
    assert failing.resource_id not in json.dumps(warning)


def test_done_handler_is_not_reported(collector: Collector) -> None:
    assert run(reports.count_credentials, event(COMPLETED), state=None).outcome == "done"
    reports.disconnect(None)
    assert collector.reports == []


def test_hook_knows_whether_the_handler_runs_again() -> None:
    failures: list[FailedRun] = []
    accounts = Handlers("accounts")

    @accounts.on_error
    def note(failure: FailedRun, context: SyncContext) -> None:
        failures.append(failure)

    @accounts.on(COMPLETED, retries=1)
    def activate(event: FetchedEvent[Issuance], context: SyncContext) -> None:
        raise ConnectionError

    run(activate, event(COMPLETED), attempts="until settled")
    assert [(failure.event.attempt, failure.will_retry) for failure in failures] == [(1, True), (2, False)]
