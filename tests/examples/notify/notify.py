"""Notify an HTTP endpoint with signed Standard Webhooks messages. They hold ids, types and states, no claims."""

import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import httpx
from standardwebhooks import Webhook

from credhook import AsyncContext, FetchedEvent, GiveUp, Handlers, Issuance, Presentation, Retry

#: The longest wait that `Retry` accepts, in seconds.
_WEEK: Final = 7 * 86_400


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The receiver of the messages.

    Attributes:
        client: keeps the connections.
        url: may hold a secret, so the repr omits it.
        signing: signs with the shared secret.
    """

    client: httpx.AsyncClient = field(repr=False)
    url: str = field(repr=False)
    signing: Webhook = field(repr=False)

    async def tell(self, event: FetchedEvent, key: str) -> None:
        """Send one message. The endpoint recognises repetitions by the `key`.

        Raises:
            Retry: the endpoint is busy.
            GiveUp: the endpoint refused the message.
            httpx.TransportError: there was no response.
        """
        # The signature covers id.time.body, so Standard Webhooks allows no full stop in an id.
        webhook_id, now = key.replace(".", ":"), datetime.now(UTC)
        body = message(event)
        headers = {
            "content-type": "application/json",
            "webhook-id": webhook_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self.signing.sign(webhook_id, now, body),
        }
        answer = await self.client.post(self.url, content=body, headers=headers)
        if refused := refusal(answer.status_code, answer.headers.get("retry-after", "")):
            raise refused


handlers = Handlers[Endpoint]("notify")


@handlers.startup
async def connect() -> Endpoint:
    """Return the endpoint, with one HTTP client for this worker process.

    Raises:
        KeyError: the URL or the secret is not set. The worker logs it and tries again.
    """
    url, secret = os.environ["NOTIFY_URL"], os.environ["NOTIFY_SECRET"]
    return Endpoint(httpx.AsyncClient(timeout=10), url, Webhook(secret))


@handlers.shutdown
async def disconnect(endpoint: Endpoint) -> None:
    """Close the connections."""
    await endpoint.client.aclose()


@handlers.on(
    "openid4vc.issuance.completed", "openid4vc.issuance.failed", "openid4vc.issuance.expired", timeout=15, concurrency=8
)
async def tell_issuance(event: FetchedEvent[Issuance], context: AsyncContext[Endpoint]) -> None:
    """Report how an issuance has ended."""
    await context.state.tell(event, context.idempotency_key)


@handlers.on("openid4vc.verification.data", condition=lambda event: event.details.trusted, timeout=15, concurrency=8)
async def tell_presentation(event: FetchedEvent[Presentation], context: AsyncContext[Endpoint]) -> None:
    """Report that trusted data was presented."""
    await context.state.tell(event, context.idempotency_key)


def message(event: FetchedEvent) -> str:
    """Return the message as JSON, without claims."""
    data = {"id": event.resource_id, "status": event.details.status}
    return json.dumps({"type": event.type, "timestamp": event.received_at.isoformat(), "data": data})


def refusal(status: int, retry_after: str) -> Retry | GiveUp | None:
    """Return the exception to raise for a response, or None if the message was accepted."""
    if httpx.codes.is_success(status):
        return None
    if status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR:
        # The header may also hold a date. Then the worker decides when to try again.
        return Retry(after=min(int(retry_after), _WEEK) if retry_after.isdecimal() else None)
    return GiveUp(f"the endpoint answered {status}")
