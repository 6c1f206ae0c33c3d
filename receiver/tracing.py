"""Trace a delivery as two spans: the request, and within it the sending of its event to the queue.

Only authenticated deliveries are traced, so strangers cannot fill the collector. The trace context of a request becomes
a link. If it were the parent, the sender would choose which deliveries are sampled.
"""

import time

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Tracer
from opentelemetry.trace.propagation import set_span_in_context

from credhook.events import Event
from credhook.receiver.inbox import Inbox, Outcome, StoreUnavailable
from credhook.receiver.signature import Headers
from credhook.settings import ReceiverSettings
from credhook.tracing import NOT_CHOSEN
from credhook.tracing.spans import extract, fail, inject, link


class DeliveryTracer:
    """Passes events to the inbox and traces them."""

    def __init__(self, tracer: Tracer, inbox: Inbox, settings: ReceiverSettings) -> None:
        self._tracer, self._inbox = tracer, inbox
        self._names = f"POST {settings.webhook_path}", f"send {settings.queue}"
        self._request = {
            "http.request.method": "POST",
            "http.route": settings.webhook_path,  # Without the path secret.
            "url.scheme": "https" if settings.tls_certfile else "http",
        }
        self._sending = {
            "messaging.system": "rq",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": settings.queue,
        }

    async def accept(self, delivery_id: str, event: Event, headers: Headers, took: float) -> Outcome:
        """Accept the event as `Inbox.accept` does, and trace it. `took`: seconds since the request began.

        Raises:
            StoreUnavailable: Redis did not confirm that the event is written.
        """
        ids = {
            "messaging.message.id": delivery_id,
            "credhook.event.type": event.type,
            "credhook.resource.id": event.resource_id,
        }
        # Neither span becomes the current span, since the inbox writes for other requests, too.
        request = self._tracer.start_span(
            self._names[0],
            Context(),
            SpanKind.SERVER,
            self._request | ids,
            link(extract(dict(headers).get(b"traceparent", b"").decode("latin-1"))),
            start_time=time.time_ns() - int(took * 1e9),
        )
        if not request.is_recording():  # Not sampled.
            return await self._inbox.accept(delivery_id, event, NOT_CHOSEN)
        context = set_span_in_context(request, Context())
        sending = self._tracer.start_span(self._names[1], context, SpanKind.PRODUCER, self._sending | ids)
        try:
            outcome = await self._inbox.accept(delivery_id, event, inject(sending))
        except BaseException as error:
            fail(sending, type(error).__name__)
            if isinstance(error, Exception):  # Otherwise the request was cancelled.
                request.set_attribute("http.response.status_code", 503 if isinstance(error, StoreUnavailable) else 500)
            fail(request, type(error).__name__)
            raise
        else:
            request.set_attributes({"http.response.status_code": 202, "credhook.outcome": outcome.value})
            return outcome
        finally:
            sending.end()
            request.end()
