"""Who wants traces, what a record keeps of one, and which contexts of senders are understood."""

from collections.abc import Sequence
from contextvars import ContextVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from credhook.receiver.tracing import links, written
from credhook.tracing import NOT_CHOSEN, Traced, exporters
from credhook.worker.queue.group_commit import GroupCommit, Operation

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HTTP, GRPC = "otlp_proto_http", "otlp_proto_grpc"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, ()),
        ({"ENDPOINT": ""}, ()),
        ({"OTEL_SERVICE_NAME": "ours"}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, (HTTP,)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, (HTTP,)),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics"}, ()),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, (HTTP,)),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, (GRPC,)),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, (HTTP,)),
        ({"OTEL_TRACES_EXPORTER": " console , otlp,console"}, ("console", HTTP)),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, ()),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, ()),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "otlp"}, ()),
        ({"OTEL_SDK_DISABLED": "false", "OTEL_TRACES_EXPORTER": "otlp"}, (HTTP,)),
    ],
)
def test_spans_are_exported_where_somebody_says_so(environment: dict[str, str], wanted: tuple[str, ...]) -> None:
    assert exporters(environment) == wanted


@given(st.binary(min_size=24, max_size=24), st.booleans())
def test_what_a_record_keeps_is_short_and_can_be_read(ids: bytes, replayed: bool) -> None:
    traced = Traced(ids[:16].hex(), ids[16:].hex(), replayed)
    assert Traced.read(str(traced)) == traced
    assert len(str(traced)) == 32 + replayed


@pytest.mark.parametrize("text", ["", "~", "x", "~" * 32, "A" * 31, "A" * 33, "é" * 32, "A" * 32 + "\n", TRACE + SPAN])
def test_what_somebody_else_has_written_there_is_no_trace(text: str) -> None:
    assert Traced.read(text) is None


def test_what_is_written_leads_back_to_the_span_if_it_was_chosen() -> None:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("x")
    traced = Traced.read(written(span))
    assert traced is not None
    context = span.get_span_context()
    assert (int(traced.trace, 16), int(traced.span, 16)) == (context.trace_id, context.span_id)
    left_out = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("test").start_span("x")
    assert written(left_out) == NOT_CHOSEN


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        ([f"00-{TRACE}-{SPAN}-01"], True),
        ([f"00-{TRACE}-{SPAN}-00"], True),
        ([f"cc-{TRACE}-{SPAN}-01-what-comes-later"], True),
        ([], False),
        ([f"00-{TRACE}-{SPAN}-01"] * 2, False),
        ([f"ff-{TRACE}-{SPAN}-01"], False),
        ([f"00-{'0' * 32}-{SPAN}-01"], False),
        ([f"00-{TRACE}-{'0' * 16}-01"], False),
        ([f"00-{TRACE.upper()}-{SPAN}-01"], False),
        ([f"00-{TRACE}-{SPAN}"], False),
        (["Canary"], False),
    ],
)
def test_a_senders_context_is_a_link_if_it_is_one(said: list[str], understood: bool) -> None:
    found = links([(b"host", b"x"), *((b"traceparent", one.encode()) for one in said)])
    assert [f"{link.context.trace_id:032x}-{link.context.span_id:016x}" for link in found] == [
        f"{TRACE}-{SPAN}"
    ] * understood


async def test_what_is_written_for_many_events_is_of_the_trace_of_none() -> None:
    trace: ContextVar[str] = ContextVar("trace", default="none")
    seen = []

    async def run(operations: Sequence[Operation]) -> list[int]:
        seen.append(trace.get())
        return [1] * len(operations)

    trace.set("one event's")
    assert await GroupCommit(run).write(("x",)) == 1
    assert seen == ["none"]
