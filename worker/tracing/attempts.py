"""Attempts at events, and the handlers within them, as spans.

An attempt goes on with the trace of the delivery, as often as the event is tried. What has been replayed may have come
a week ago: each of its attempts is a trace of its own, with a link to the span that has sent it.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context as SpanContext
from opentelemetry.trace import Link, Span, SpanKind, Tracer
from structlog.contextvars import bound_contextvars

from credhook.store import State
from credhook.store.traces import NOT_CHOSEN, Traced
from credhook.tracing.spans import below, current_span, fail, remote
from credhook.worker.attempt.running import run
from credhook.worker.handlers.given import Context, FetchedEvent
from credhook.worker.handlers.handler import Handler
from credhook.worker.queue.claim import Claim, Settlement
from credhook.worker.queue.failure import Failure

#: States that an attempt that has failed leaves an event in.
_FAILED = frozenset({State.WAITING, State.DEAD, State.DATA_GONE})


class AttemptSpan:
    """The span of one attempt."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def settled(self, settlement: Settlement | None, failures: Sequence[Failure]) -> None:
        """What it came to: the state, and which causes it has failed with."""
        if settlement is None:
            fail(self._span, "LeaseLost")
            return
        self._span.set_attribute("credhook.state", settlement.state.value)
        if failures:
            self._span.set_attribute("credhook.causes", [failure.cause for failure in failures])
        if settlement.state in _FAILED:
            fail(self._span, failures[0].what.partition(" ")[0] if failures else "Defer")  # The class of the error.


class AttemptTracer:
    """Traces the attempts of one process."""

    def __init__(self, tracer: Tracer, *, queue: str, chance: Callable[[int], int] = random.getrandbits) -> None:
        """Trace by `tracer` what is taken from the queue; `chance`: so many random bits."""
        self._tracer = tracer
        self._chance = chance
        self._name = f"process {queue}"
        self._processing = {
            "messaging.system": "rq",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": queue,
        }

    @contextmanager
    def attempt(self, claim: Claim) -> Iterator[AttemptSpan]:
        """One attempt at the event, for the length of the block; the lines that are logged in it name its trace."""
        parent, links = self._came_from(claim.trace)
        attributes = self._processing | _ids(claim.event_id, claim.type, claim.resource_id, claim.attempt)
        with current_span(self._tracer, self._name, SpanKind.CONSUMER, attributes, parent=parent, links=links) as span:
            if not span.is_recording():
                yield AttemptSpan(span)
                return
            with bound_contextvars(trace_id=f"{span.get_span_context().trace_id:032x}"):
                yield AttemptSpan(span)

    async def run_handler(
        self, handler: Handler, event: FetchedEvent, context: Context[Any, Any], **how: Any
    ) -> Exception | None:
        """`credhook.worker.attempt.running.run`, traced: what it returns and how it is called are the same."""
        attributes = {"credhook.handler": handler.name} | _ids(
            event.webhook_id, event.type, event.resource_id, event.attempt
        )
        with current_span(self._tracer, handler.name, SpanKind.INTERNAL, attributes) as span:
            failure = await run(handler, event, context, **how)
            if failure is not None:
                fail(span, type(failure).__name__)
            return failure

    def _came_from(self, trace: str | None) -> tuple[SpanContext, list[Link]]:
        """What an attempt is part of, and what it is linked to."""
        if trace == NOT_CHOSEN:  # Nor is it here, or we would export traces without a beginning.
            return below(remote(f"{self._chance(128) | 1:032x}", f"{self._chance(64) | 1:016x}", sampled=False)), []
        sent = Traced.read(trace) if trace is not None else None
        if sent is None:
            return SpanContext(), []
        sender = remote(sent.trace, sent.span)
        return (SpanContext(), [Link(sender)]) if sent.replayed else (below(sender), [])


def _ids(event_id: str, event_type: str, resource_id: str, attempt: int) -> dict[str, str | int]:
    return {
        "messaging.message.id": event_id,
        "credhook.event.type": event_type,
        "credhook.resource.id": resource_id,
        "credhook.attempt": attempt,
    }
