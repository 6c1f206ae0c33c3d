"""Make and export spans with OpenTelemetry's SDK. A span names the class of an error, never its message."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_current_span
from opentelemetry.trace.propagation import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes

from credhook.store.announcements import version

_W3C = TraceContextTextMapPropagator()


class UnknownExporter(Exception):
    """No installed package offers an exporter of that name."""


def create_provider(part: str, exporter: str) -> TracerProvider:
    """Return OpenTelemetry's provider for this process, so that the spans of authors' libraries join ours.

    Raises:
        UnknownExporter: no package offers the exporter.
        Exception: the exporter does not accept its variables.
    """
    offered = entry_points(group="opentelemetry_traces_exporter", name=exporter)
    if not offered:
        raise UnknownExporter(exporter)
    processor = BatchSpanProcessor(offered[exporter].load()())
    ours = Resource.create({"service.name": f"credhook-{part}", "service.version": version()})
    # At exit the provider would wait for as long as a collector does not answer; `tracing.flush` does not.
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    return provider


@contextmanager
def current_span(
    tracer: Tracer,
    name: str,
    kind: SpanKind,
    attributes: Attributes,
    *,
    parent: Context | None = None,
    links: list[Link] | None = None,
) -> Iterator[Span]:
    """Trace the block as a span. Spans that are created in it become its children.

    `name` has few values, by OpenTelemetry's conventions. The default parent is the current span.
    """
    with tracer.start_as_current_span(
        name,
        context=parent,
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=False,  # The message and the traceback may hold claims.
        set_status_on_exception=False,  # The status would hold the message.
    ) as span:
        try:
            yield span
        except BaseException as error:
            fail(span, type(error).__name__)
            raise


def fail(span: Span, error: str) -> None:
    """Mark a span as failed, with the class of an error or an HTTP status."""
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR))


def extract(traceparent: str) -> Context:
    """Return a context in which the span of another process is the current one; an empty context if it names none."""
    return _W3C.extract({"traceparent": traceparent}, Context())


def inject(span: Span) -> str:
    """Return the `traceparent` that names this span."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, set_span_in_context(span, Context()))
    return carrier["traceparent"]


def link(context: Context) -> list[Link]:
    """Return a link to the current span of a context, if there is one."""
    span = get_current_span(context).get_span_context()
    return [Link(span)] if span.is_valid else []
