"""Who wants traces, what a record keeps of one, and which contexts of senders are understood."""

from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, Tracer, get_current_span

from credhook.events import Event
from credhook.receiver.tracing import DeliveryTracer
from credhook.settings import ReceiverSettings
from credhook.store import REPLAYED
from credhook.tracing import trace_id, wanted_exporter
from credhook.tracing.spans import current_span, extract, inject, link
from credhook.worker.api.http.exchange import Request, Response, Unanswered
from credhook.worker.tracing import TracedTransport, WorkSpan

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HTTP, GRPC = "otlp_proto_http", "otlp_proto_grpc"
BOTH = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ""),
        ({"OTEL_SERVICE_NAME": "ours"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, HTTP),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces", "OTEL_TRACES_EXPORTER": ""}, HTTP),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics"}, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, HTTP),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, GRPC),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, HTTP),
        ({"OTEL_TRACES_EXPORTER": "otlp"} | BOTH, GRPC),
        ({"OTEL_TRACES_EXPORTER": "otlp_proto_http"}, HTTP),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, ""),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, ""),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "otlp"}, ""),
        ({"OTEL_SDK_DISABLED": "false", "OTEL_TRACES_EXPORTER": "otlp"}, HTTP),
    ],
)
def test_spans_are_exported_where_somebody_says_so(environment: dict[str, str], wanted: str) -> None:
    assert wanted_exporter(environment) == wanted


@pytest.mark.parametrize("mark", ["", REPLAYED])
def test_record_leads_back_to_its_span(mark: str) -> None:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("x")
    recorded = inject(span)
    assert get_current_span(extract(recorded)).get_span_context().span_id == span.get_span_context().span_id
    assert trace_id(mark + recorded) == f"{span.get_span_context().trace_id:032x}"


@pytest.mark.parametrize(
    "text", ["", "~", "x", "~" * 55, f"00-{TRACE}-{SPAN}-02", f"00-{TRACE}-{SPAN}-01\n", f"00-{TRACE}-{SPAN}", TRACE]
)
def test_unsampled_context_starts_no_trace(text: str) -> None:
    assert trace_id(text) is None


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
        ("", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{SPAN}", False),
        ("Canary", False),
    ],
)
def test_a_senders_context_is_a_link_if_it_is_one(said: str, understood: bool) -> None:
    found = [one.context for one in link(extract(said))]
    assert [f"{one.trace_id:032x}-{one.span_id:016x}" for one in found] == [f"{TRACE}-{SPAN}"] * understood


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test")


def test_a_span_that_an_error_ends_names_its_class_alone(exporter: InMemorySpanExporter, tracer: Tracer) -> None:
    with pytest.raises(ValueError), current_span(tracer, "x", SpanKind.INTERNAL, {}):  # noqa: PT011  Its message is the point.
        raise ValueError("Canary")
    WorkSpan(lost := tracer.start_span("x")).settled(None, ())
    lost.end()
    span, _ = spans = exporter.get_finished_spans()
    assert [one.attributes for one in spans] == [{"error.type": "ValueError"}, {"error.type": "LeaseLost"}]
    assert (len(span.events), span.status.description) == (0, None)


async def test_delivery_span_names_scheme_and_queue(exporter: InMemorySpanExporter, tracer: Tracer) -> None:
    nowhere: Any = None  # An inbox with a defect.
    given: Any = {"CREDHOOK_INSECURE": "1", "CREDHOOK_QUEUE": "ours"}
    for certfile in (None, Path("tls.pem")):
        settings = ReceiverSettings(**given).model_copy(update={"tls_certfile": certfile})
        with pytest.raises(AttributeError):
            await DeliveryTracer(tracer, nowhere, settings).accept("m1", Event("a", "b"), [], took=5.0)
    spans: Any = exporter.get_finished_spans()
    _, plain, sent, secure = spans
    assert sent.name == "send ours"
    assert sent.attributes["messaging.destination.name"] == "ours"
    assert [one.attributes["url.scheme"] for one in (plain, secure)] == ["http", "https"]
    assert plain.attributes["http.response.status_code"] == 500
    assert 5 <= (sent.start_time - secure.start_time) / 1e9 < 60


async def test_a_request_whose_path_has_no_template_is_named_by_its_method_alone(
    exporter: InMemorySpanExporter, tracer: Tracer
) -> None:
    send = AsyncMock(side_effect=[Response(204, {}, b""), Response(404, {}, b""), Unanswered("ConnectTimeout")])
    for scheme in ("https", "http", "https"):
        with suppress(Unanswered):
            request = Request("GET", f"{scheme}://a.example/Canary", {})
            await TracedTransport(tracer, AsyncMock(send=send)).send(request)
    told = [(one.name, dict(one.attributes or {})) for one in exporter.get_finished_spans()]
    assert "Canary" not in str(told)
    found = [(name, one["server.port"], one.get("error.type")) for name, one in told]
    assert found == [("GET", 443, None), ("GET", 80, "404"), ("GET", 443, "ConnectTimeout")]
