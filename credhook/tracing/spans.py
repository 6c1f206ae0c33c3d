"""What all our spans have in common: errors are in them by their class, and nothing that a message could say."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)
from opentelemetry.trace.propagation import set_span_in_context
from opentelemetry.util.types import Attributes


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
    """A span for the length of the block, within which all that is traced becomes a child of it.

    `name` has few values, by OpenTelemetry's conventions; without a `parent` the current span is it.
    """
    with tracer.start_as_current_span(
        name,
        context=parent,
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=False,  # With its message and a traceback, either of which may hold claims.
        set_status_on_exception=False,  # Likewise.
    ) as span:
        try:
            yield span
        except BaseException as error:
            fail(span, type(error).__name__)
            raise


def fail(span: Span, error: str) -> None:
    """Mark it as failed with an error of that class, or with that status."""
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR))


def remote(trace: str, span: str, *, sampled: bool = True) -> SpanContext:
    """A span of another process, by its ids in hexadecimal digits."""
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=flags)


def below(parent: SpanContext) -> Context:
    """Where that span is the current one."""
    return set_span_in_context(NonRecordingSpan(parent), Context())
