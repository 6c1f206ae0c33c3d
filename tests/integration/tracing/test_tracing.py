"""Traces as a collector receives them from our processes: one for each event, nothing in them but ids and classes."""

import os
import re

import pytest

from credhook.sandbox.local.environment import free_port
from credhook.tracing import PACKAGES
from support import plain
from support.process import commands
from support.process.serving import Receiver, receiver, running
from support.process.trace_collector import Collector
from support.receiver.signing import SECRET, body, headers
from support.redis.redis_server import configured
from support.waiting import until
from support.worker.fleet_harness import FleetHarness, presentation
from support.worker.stock_rq import OUR_JOBS, stock_worker

DATA = "openid4vc.verification.data"
CANARY = "Canary-7f3a"
#: As a proxy or a sender says it.
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

#: Authors who trace what they call, in their own words.
TRACED = """
from opentelemetry import trace

def call(name):
    with trace.get_tracer("library").start_as_current_span(name):
        pass

@handlers.on("*")
async def looks(event, context):
    note("looks", event.webhook_id, event.attempt)
    context.log.info("looked")
    call("from a loop")

@handlers.on("*")
def works(event, context):
    call("from a thread")
    context.api.presentations.get(event.details.id)
"""

FAILS = """
from credhook import Backoff

@handlers.on("*", backoff=Backoff(first=0.1, longest=0.1))
async def fails(event, context):
    note("begun", event.webhook_id, event.attempt)
    if event.attempt == 1:
        raise ValueError("Canary-7f3a", event.details)
    if event.webhook_id == "given-up":
        raise GiveUp("Canary-7f3a")
"""


@pytest.fixture
def rig(rig: FleetHarness, collector: Collector) -> FleetHarness:
    rig.stub.answer = lambda call: presentation(call.resource, {"given": CANARY})
    rig.environment |= collector.environment
    return rig


def front(rig: FleetHarness, **settings: str) -> Receiver:
    """The receiver, traced as the workers are."""
    traced = {name: value for name, value in rig.environment.items() if name.startswith("OTEL_")}
    return receiver(rig.folder, rig.redis_url, options=(), **traced, **settings)


def deliver(process: Receiver, webhook_id: str, resource: str = "pre_1", **more: str) -> int:
    content = body(DATA, resource)
    return plain.post(process.url, content=content, headers=headers(webhook_id, content) | more).status_code


def assert_silent(collector: Collector) -> None:
    """No span says anything in words: neither what was raised nor what a status means, and nothing personal."""
    assert [span for span in collector.spans if span.words != (0, "")] == []
    assert not [request for request in collector.received if b"canary" in request.lower()]


def test_one_trace_leads_from_the_delivery_to_the_handlers(rig: FleetHarness, collector: Collector) -> None:
    rig.plugin(TRACED)
    path = "Canary-path-of-thirty-two-characters"
    with front(rig, CREDHOOK_PATH_SECRET=path) as process, rig.worker() as worker:
        process.url += f"/{path}"
        assert deliver(process, "one", traceparent=f"00-{TRACE}-{SPAN}-01") == 202
        rig.reaches("one", "done")
        attempt = collector.one("process credhook")
        assert (process.stop(), worker.stop()) == (0, 0)
    post, sent = collector.one("POST /webhooks"), collector.one("send credhook")
    shown = commands.invoke("events", "show", "one", environment={"REDIS_URL": rig.redis_url}).stdout
    assert re.search(rf"^trace +{post.trace}$", shown, re.MULTILINE)
    looks, works = collector.one("test.looks"), collector.one("test.works")
    assert (post.kind, sent.kind, attempt.kind, looks.kind) == ("SERVER", "PRODUCER", "CONSUMER", "INTERNAL")
    assert (post.parent, sent.parent, attempt.parent) == ("", post.id, sent.id)
    assert (looks.parent, works.parent) == (attempt.id, attempt.id)
    assert collector.one("from a loop").parent == looks.id
    assert collector.one("from a thread").parent == works.id
    fetch, called = collector.all("GET /me-creds/api/presentations/{id}", 2)
    assert (fetch.kind, fetch.parent, called.parent) == ("CLIENT", attempt.id, works.id)
    assert fetch.attributes == {
        "http.request.method": "GET",
        "url.template": "/me-creds/api/presentations/{id}",
        "server.address": "127.0.0.1",
        "server.port": int(rig.stub.url.rpartition(":")[2]),
        "http.response.status_code": 200,
    }
    assert {span.trace for span in collector.spans} == {post.trace}
    assert (post.service, attempt.service) == ("credhook-receiver", "credhook-worker")
    assert post.began <= sent.began <= sent.ended <= post.ended
    # Who sends may not choose which traces there are, nor which are sampled.
    assert post.trace != TRACE
    assert post.links == [(TRACE, SPAN)]
    assert post.attributes == {
        "http.request.method": "POST",
        "http.route": "/webhooks",
        "url.scheme": "http",
        "http.response.status_code": 202,
        "messaging.message.id": "one",
        "credhook.event.type": DATA,
        "credhook.resource.id": "pre_1",
        "credhook.outcome": "accepted",
    }
    assert attempt.attributes == {
        "messaging.system": "rq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "credhook",
        "messaging.message.id": "one",
        "credhook.event.type": DATA,
        "credhook.resource.id": "pre_1",
        "credhook.state": "done",
    }
    assert_silent(collector)
    for line in ("events_accepted", "event_done", "looked"):
        assert re.search(
            rf'"event":"{line}".*"trace_id":"{post.trace}"|"trace_id":"{post.trace}".*"{line}"', rig.logs()
        )


def test_attempts_are_siblings_and_a_replay_begins_a_trace_that_is_linked(
    rig: FleetHarness, collector: Collector
) -> None:
    rig.plugin(FAILS)
    with front(rig) as process, rig.worker() as worker:
        assert deliver(process, "one") == 202
        rig.reaches("one", "done")
        collector.all("process credhook", 2)
        replayed = commands.credhook("events", "replay", "one", "--yes", environment=os.environ | rig.environment)
        assert replayed.returncode == 0, replayed.stderr
        first, second, third, fourth = collector.all("process credhook", 4)
        assert deliver(process, "given-up") == 202
        rig.reaches("given-up", "dead")
        assert (process.stop(), worker.stop()) == (0, 0)
    sent, _ = collector.all("send credhook", 2)
    assert [(span.trace, span.parent) for span in (first, second)] == [(sent.trace, sent.id)] * 2
    for span in (third, fourth):
        assert span.trace != sent.trace
        assert (span.parent, span.links) == ("", [(sent.trace, sent.id)])
    assert [span.attributes["credhook.state"] for span in (first, second)] == ["waiting", "done"]
    assert (first.failed, second.failed) == (True, False)
    assert first.attributes["error.type"] == "ValueError"
    assert len(first.attributes["credhook.causes"]) == 1
    failed, ran, *_ = collector.all("test.fails", 4)
    assert (failed.parent, ran.parent) == (first.id, second.id)
    assert (failed.failed, failed.attributes["error.type"]) == (True, "ValueError")
    *_, given_up = collector.all("test.fails", 6)
    assert (given_up.failed, given_up.attributes["error.type"]) == (True, "GiveUp")
    assert_silent(collector)


def test_a_job_of_rqs_worker_exports_its_spans_before_its_process_ends(rig: FleetHarness, collector: Collector) -> None:
    rig.plugin(TRACED)
    # Too late for whoever does not see to it at the end.
    settings = {"OTEL_BSP_SCHEDULE_DELAY": "600000", "OTEL_SERVICE_NAME": "ours"}
    with front(rig) as process, stock_worker(rig, *OUR_JOBS, **settings):
        assert deliver(process, "one") == 202
        assert deliver(process, "two") == 202
        attempts = collector.all("process credhook", 2)
        sent = collector.all("send credhook", 2)
        collector.all("from a thread", 2)
    assert {(span.trace, span.parent) for span in attempts} == {(span.trace, span.id) for span in sent}
    assert {span.service for span in attempts} == {"ours"}


def test_worker_follows_the_sampler_of_the_receiver(rig: FleetHarness, collector: Collector) -> None:
    rig.plugin(TRACED)
    with rig.worker() as worker:
        rig.started(worker)
        with front(rig, OTEL_TRACES_SAMPLER="always_off") as process:
            assert deliver(process, "left-out", traceparent=f"00-{TRACE}-{SPAN}-01") == 202
            rig.reaches("left-out", "done")
            assert process.stop() == 0
        rig.accept(("untraced", DATA, "pre_2"))  # By a receiver that does not trace: the worker's own sampler decides.
        rig.reaches("untraced", "done")
        assert worker.stop() == 0
    ids = {span.attributes.get("messaging.message.id") for span in collector.spans}
    assert ids - {None} == {"untraced"}
    assert len({span.trace for span in collector.spans}) == 1  # The libraries' as well.
    assert rig.record("left-out")["trace"] == ""
    assert "trace" not in rig.record("untraced")


def test_only_authentic_deliveries_are_traced(rig: FleetHarness, collector: Collector) -> None:
    with front(rig) as process:
        content = body(DATA)
        refused = plain.post(process.url, content=content, headers=headers("x", content, secret=SECRET[:-4] + "AAA="))
        assert refused.status_code == 401
        with configured(rig.redis, "maxmemory", "1"):
            assert deliver(process, "one") == 503
        assert process.stop() == 0
    post, sent = collector.one("POST /webhooks"), collector.one("send credhook")
    assert (post.failed, sent.failed) == (True, True)
    assert (post.attributes["http.response.status_code"], post.attributes["error.type"]) == (503, "StoreUnavailable")
    assert_silent(collector)


@pytest.mark.parametrize("collects", ["hangs", "is away"])
def test_no_event_suffers_from_a_collector_that(collects: str, rig: FleetHarness, collector: Collector) -> None:
    rig.plugin(FAILS)
    # An end that waited for the collector would wait for longer than `stop` does.
    rig.environment |= {"OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
    if collects == "hangs":
        collector.may_answer.clear()
    else:
        rig.environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    with front(rig) as process, rig.worker() as worker:
        assert deliver(process, "one") == 202
        rig.reaches("one", "done")
        if collects == "hangs":
            until(lambda: len(collector.received) >= 2, what="both to export")
        assert (process.stop(), worker.stop()) == (0, 0)


#: What makes spans, wherever it is installed. redis-py imports what it counts with, if that is.
MAKES_SPANS = re.compile(r"opentelemetry\.(sdk\.trace|exporter)|credhook\.((receiver|worker)\.tracing|tracing\.spans)")


@pytest.mark.parametrize("installed", [True, False])
def test_processes_without_traces_import_no_tracing_library(
    installed: bool, rig: FleetHarness, collector: Collector
) -> None:
    rig.plugin("""
@handlers.on("*")
async def looks(event, context):
    note("imported", *[name for name, module in sys.modules.items() if module is not None])
""")
    settings = {"OTEL_SDK_DISABLED": "true"} if installed else {"OTEL_EXPORTER_OTLP_ENDPOINT": ""} | without_it(rig)
    rig.accept(("one", DATA, "pre_1"))
    with running(rig.folder / "worker.log", "worker", environment=rig.environment | settings):
        assert "trace" not in rig.reaches("one", "done")
    (note,) = rig.notes()
    assert "credhook.tracing" in note.words
    assert not MAKES_SPANS.search("\n".join(note.words))
    assert installed or not [name for name in note.words if name.startswith("opentelemetry")]
    assert "tracing_" not in rig.logs()
    assert collector.received == []


def without_it(rig: FleetHarness) -> dict[str, str]:
    """What has a process find no OpenTelemetry, as if the extra were not installed."""
    (rig.folder / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry'] = None\n")
    return {"PYTHONPATH": str(rig.folder)}


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"OTEL_TRACES_EXPORTER": "carrier-pigeon"}, "UnknownExporter"), ({}, f"pip install {PACKAGES}")],
)
def test_where_it_cannot_be_events_go_their_way_untraced(
    settings: dict[str, str], said: str, rig: FleetHarness, collector: Collector
) -> None:
    rig.plugin(FAILS)
    settings = settings or without_it(rig)
    with front(rig, **settings) as process, rig.worker(**settings) as worker:
        assert deliver(process, "one") == 202
        assert "trace" not in rig.reaches("one", "done")
        for each in (process, worker):
            assert each.stop() == 0
            assert '"tracing_off"' in each.text
            assert said in each.text
    assert collector.received == []
