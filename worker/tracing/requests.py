"""Requests to the platform as spans, whoever makes them: the fetch, handlers, or the token's renewal.

Neither URL nor body is in them: the one may name a user, the other is claims. And our context is not sent along: what
we trace is nothing to the platform.
"""

from http import HTTPStatus
from urllib.parse import urlsplit

from opentelemetry.trace import SpanKind, Tracer

from credhook.tracing.spans import current_span, fail
from credhook.worker.api.http.exchange import Request, Response, Transport, Unanswered


class TracedTransport:
    """A transport, and a span around each request that goes over it."""

    def __init__(self, tracer: Tracer, transport: Transport) -> None:
        self._tracer = tracer
        self._transport = transport

    async def send(self, request: Request) -> Response:
        """See `Transport`."""
        name = f"{request.method} {request.template}".rstrip()
        with current_span(self._tracer, name, SpanKind.CLIENT, _attributes(request)) as span:
            try:
                response = await self._transport.send(request)
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
        await self._transport.aclose()


def _attributes(request: Request) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {"http.request.method": request.method}
    if request.template:
        attributes["url.template"] = request.template
    url = urlsplit(request.url)
    if url.hostname:
        attributes["server.address"] = url.hostname
        attributes["server.port"] = url.port or (443 if url.scheme == "https" else 80)
    return attributes
