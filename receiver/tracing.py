"""A delivery as spans: the request, and within it the sending of its event to the queue.

Only what has been authenticated is traced: nobody else may make us export anything, or crowd out what we would. The
context that comes with a delivery is a link and no parent: the port is public, and whoever sends would otherwise choose
what is sampled, and could have all that it sends make one trace without end.
"""

import re
import time
from collections.abc import Iterable
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Tracer
from opentelemetry.trace.propagation import set_span_in_context

from credhook.events import Event
from credhook.receiver.inbox import Inbox, Outcome, StoreUnavailable
from credhook.store.traces import NOT_CHOSEN, Traced
from credhook.tracing.spans import fail, remote

#: W3C Trace Context, 3.2: version, trace, span, flags. Of a later version the beginning is the same.
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?"
)

#: Headers as ASGI has them.
Headers = Iterable[tuple[bytes, bytes]]


class DeliveryTracer:
    """Accepts events and traces how."""

    def __init__(self, tracer: Tracer, inbox: Inbox, *, route: str, queue: str, scheme: str) -> None:
        """`route`: the path without its secret; `scheme`: `http` or `https`."""
        self._tracer = tracer
        self._inbox = inbox
        self._request = {"http.request.method": "POST", "http.route": route, "url.scheme": scheme}
        self._sending = {
            "messaging.system": "rq",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": queue,
        }
        self._names = f"POST {route}", f"send {queue}"

    async def accept(self, delivery_id: str, event: Event, headers: Headers, took: float) -> Outcome:
        """`Inbox.accept`, traced; `took`: seconds since the request began.

        Raises:
            StoreUnavailable: as there.
        """
        ids = {
            "messaging.message.id": delivery_id,
            "credhook.event.type": event.type,
            "credhook.resource.id": event.resource_id,
        }
        # Neither is ever the current span: what an inbox does next, it does for others as well.
        request = self._tracer.start_span(
            self._names[0],
            Context(),
            SpanKind.SERVER,
            self._request | ids,
            links(headers),
            start_time=time.time_ns() - int(took * 1e9),
        )
        if not request.is_recording():  # As most are where a sampler chooses few: no more is made for them.
            return await self._inbox.accept(delivery_id, event, NOT_CHOSEN)
        context = set_span_in_context(request, Context())
        sending = self._tracer.start_span(self._names[1], context, SpanKind.PRODUCER, self._sending | ids)
        try:
            outcome = await self._inbox.accept(delivery_id, event, written(sending))
        except BaseException as error:
            fail(sending, type(error).__name__)
            if isinstance(error, Exception):  # Else nobody is answered.
                request.set_attribute("http.response.status_code", 503 if isinstance(error, StoreUnavailable) else 500)
            fail(request, type(error).__name__)
            raise
        else:
            request.set_attributes({"http.response.status_code": 202, "credhook.outcome": outcome.value})
            return outcome
        finally:
            sending.end()
            request.end()


def written(span: Span) -> str:
    """How the ledger has it that this span has sent an event."""
    context = span.get_span_context()
    if not context.trace_flags.sampled:
        return NOT_CHOSEN
    return str(Traced(f"{context.trace_id:032x}", f"{context.span_id:016x}"))


def links(headers: Headers) -> list[Link]:
    """A link to the span that a request says it is part of; none if it says nothing that can be understood. Pure."""
    said = [value for name, value in headers if name == b"traceparent"]
    found = _TRACEPARENT.fullmatch(said[0]) if len(said) == 1 else None
    return [Link(remote(found[1].decode(), found[2].decode(), sampled=False))] if found else []
