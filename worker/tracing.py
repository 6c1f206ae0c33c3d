"""Traces of a worker as OpenTelemetry spans: attempts, handlers, and requests to the platform.

An attempt continues the trace of its delivery. A replayed event may be a week old, so each of its attempts is a new
trace with a link to the delivery's span. Request spans hold neither URL nor body, which may name a person. The trace
context is not sent to the platform. This module is imported only if tracing is on.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from secrets import token_hex
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Tracer, format_trace_id
from structlog.contextvars import bound_contextvars

from credhook.store import REPLAYED, State
from credhook.tracing import NOT_CHOSEN
from credhook.tracing.spans import current_span, extract, fail, link
from credhook.worker.api.http.exchange import Request, Response, Transport, Unanswered
from credhook.worker.handlers.arguments import FetchedEvent
from credhook.worker.handlers.registry import Handler
from credhook.worker.queue.claims import Claim, Settlement
from credhook.worker.queue.failure import Failure

#: States of an event after a failed attempt.
_FAILED = frozenset({State.WAITING, State.DEAD, State.DATA_GONE})


@dataclass(frozen=True)
class WorkSpan:
    """The span of an attempt, or of a handler's run."""

    span: Span

    def settled(self, settlement: Settlement | None, failures: Sequence[Failure]) -> None:
        """Add the state that the attempt has led to, and the causes of the failures."""
        if settlement is None:
            fail(self.span, "LeaseLost")
            return
        self.span.set_attribute("credhook.state", settlement.state.value)
        if failures:
            self.span.set_attribute("credhook.causes", [failure.cause for failure in failures])
        if settlement.state in _FAILED:
            fail(self.span, failures[0].what.partition(" ")[0] if failures else "Defer")  # The class of the error.

    def failed(self, error: Exception) -> None:
        """Mark the run as failed with the class of the error."""
        fail(self.span, type(error).__name__)


class AttemptTracer:
    """Traces the attempts of one process."""

    def __init__(self, tracer: Tracer, *, queue: str) -> None:
        self._tracer = tracer
        self._name = f"process {queue}"
        self._processing = {
            "messaging.system": "rq",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": queue,
        }

    @contextmanager
    def attempt(self, claim: Claim) -> Iterator[WorkSpan]:
        """Trace the block as an attempt. Log lines in it carry the trace id."""
        parent, links = _parent(claim.trace)
        attributes = self._processing | _ids(claim.event_id, claim.type, claim.resource_id)
        with current_span(self._tracer, self._name, SpanKind.CONSUMER, attributes, parent=parent, links=links) as span:
            ids = {"trace_id": format_trace_id(span.get_span_context().trace_id)} if span.is_recording() else {}
            with bound_contextvars(**ids):
                yield WorkSpan(span)

    @contextmanager
    def handler(self, handler: Handler, event: FetchedEvent) -> Iterator[WorkSpan]:
        """Trace the block as a run of the handler."""
        attributes = _ids(event.webhook_id, event.type, event.resource_id)
        attributes |= {"credhook.handler": handler.name, "credhook.attempt": event.attempt}
        with current_span(self._tracer, handler.name, SpanKind.INTERNAL, attributes) as span:
            yield WorkSpan(span)


def _parent(recorded: str | None) -> tuple[Context, list[Link]]:
    """Return the parent of an attempt's span, and its links, from the event's record."""
    if recorded == NOT_CHOSEN:  # The receiver did not sample the delivery. Sampling here would export partial traces.
        return extract(f"00-{token_hex(16)}-{token_hex(8)}-00"), []
    sender = extract((recorded or "").removeprefix(REPLAYED))
    return (Context(), link(sender)) if recorded and recorded.startswith(REPLAYED) else (sender, [])


def _ids(event_id: str, event_type: str, resource_id: str) -> dict[str, str | int]:
    return {"messaging.message.id": event_id, "credhook.event.type": event_type, "credhook.resource.id": resource_id}


@dataclass(frozen=True)
class TracedTransport:
    """A transport with a span around each request."""

    tracer: Tracer
    transport: Transport

    async def send(self, request: Request) -> Response:
        """Send the request in a span."""
        url = urlsplit(request.url)
        attributes: dict[str, str | int] = {
            "http.request.method": request.method,
            "url.template": request.template,
            "server.address": url.hostname or "",
            "server.port": url.port or (443 if url.scheme == "https" else 80),
        }
        name = f"{request.method} {request.template}".rstrip()
        with current_span(self.tracer, name, SpanKind.CLIENT, attributes) as span:
            try:
                response = await self.transport.send(request)
            except Unanswered as failure:
                fail(span, failure.kind)
                unanswered = failure
            else:
                span.set_attribute("http.response.status_code", response.status)
                if response.status >= HTTPStatus.BAD_REQUEST:
                    fail(span, str(response.status))
                return response
        raise unanswered

    async def aclose(self) -> None:
        """Close the connections."""
        await self.transport.aclose()
