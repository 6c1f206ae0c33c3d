"""A collector of OpenTelemetry's: it takes spans over OTLP/HTTP, and remembers them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from support.in_thread import Asked, http_server
from support.waiting import until


class Collected(NamedTuple):
    """One span, with its ids in hexadecimal digits."""

    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    links: list[tuple[str, str]]
    attributes: dict[str, Any]
    failed: bool
    #: What could say more than ids: how often something was noted, and what the status says.
    words: tuple[int, str]
    began: int
    ended: int


class Collector:
    """What has come.

    Attributes:
        received: each request as it came.
        may_answer: it is silent until this is set.
    """

    def __init__(self) -> None:
        self.url = ""
        self.received: list[bytes] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def environment(self) -> dict[str, str]:
        """What has a process export to it, without waiting for more."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    @property
    def spans(self) -> list[Collected]:
        """The spans in the order in which they began."""
        return sorted((span for request in list(self.received) for span in read(request)), key=lambda span: span.began)

    def all(self, name: str, number: int = 1) -> list[Collected]:
        """The spans of that name, once there are so many."""

        def named() -> list[Collected]:
            found = [span for span in self.spans if span.name == name]
            return found if len(found) >= number else []

        return until(named, what=f"{number} spans {name}")

    def one(self, name: str) -> Collected:
        (span,) = self.all(name)
        return span


def read(request: bytes) -> Iterator[Collected]:
    for resource in ExportTraceServiceRequest.FromString(request).resource_spans:
        service = _read(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Collected(
                    service,
                    span.name,
                    Sent.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    _read(span.attributes),
                    span.status.code == Status.STATUS_CODE_ERROR,
                    (len(span.events), span.status.message),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                )


def _read(attributes: Any) -> dict[str, Any]:
    def value(one: Any) -> Any:
        kind = one.WhichOneof("value")
        return [value(each) for each in one.array_value.values] if kind == "array_value" else getattr(one, kind)

    return {one.key: value(one.value) for one in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    def take(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        collector.received.append(asked.body)
        collector.may_answer.wait()
        return 200, {}, b""

    with http_server(take) as collector.url:
        yield collector
        collector.may_answer.set()
