"""Tell an HTTP endpoint what has happened, signed as Standard Webhooks has it: ids, types and states, no claims."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import httpx
from standardwebhooks import Webhook

from credhook import AsyncContext, FetchedEvent, GiveUp, Handlers, Issuance, Presentation, Retry

#: The longest wait that a worker lets a handler ask for, in seconds.
_WEEK: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the messages go.

    Attributes:
        client: its connections.
        url: where it is; it may hold a secret, and is not shown.
        signing: holds the secret that it knows.
        now: the time, in UTC.
    """

    client: httpx.AsyncClient = field(repr=False)
    url: str = field(repr=False)
    signing: Webhook = field(repr=False)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def tell(self, event: FetchedEvent, key: str) -> None:
        """Send one message; the endpoint knows repetitions by the `key`.

        Raises:
            Retry: it cannot take the message now.
            GiveUp: it does not want it.
            httpx.TransportError: it did not answer.
        """
        # What is signed is id.time.body: Standard Webhooks wants no full stop in an id.
        webhook_id, now = key.replace(".", ":"), self.now()
        body = message(event)
        headers = {
            "content-type": "application/json",
            "webhook-id": webhook_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self.signing.sign(webhook_id, now, body),
        }
        answer = await self.client.post(self.url, content=body, headers=headers)
        if refused := refusal(answer.status_code, answer.headers.get("retry-after"), now):
            raise refused


handlers = Handlers[Endpoint]("notify")


@handlers.startup
async def connect() -> Endpoint:
    """Make the client of this worker process.

    Raises:
        KeyError: the URL or the secret is not set. The worker says so, and tries again.
    """
    url, secret = os.environ["NOTIFY_URL"], os.environ["NOTIFY_SECRET"]
    return Endpoint(httpx.AsyncClient(timeout=10), url, Webhook(secret))


@handlers.shutdown
async def disconnect(endpoint: Endpoint) -> None:
    """Close its connections."""
    await endpoint.client.aclose()


@handlers.on(
    "openid4vc.issuance.completed", "openid4vc.issuance.failed", "openid4vc.issuance.expired", timeout=15, concurrency=8
)
async def tell_issuance(event: FetchedEvent[Issuance], context: AsyncContext[Endpoint]) -> None:
    """Tell how an issuance has ended."""
    await context.state.tell(event, context.idempotency_key)


@handlers.on("openid4vc.verification.data", condition=lambda event: event.details.trusted, timeout=15, concurrency=8)
async def tell_presentation(event: FetchedEvent[Presentation], context: AsyncContext[Endpoint]) -> None:
    """Tell that data has been presented, if it may be believed."""
    await context.state.tell(event, context.idempotency_key)


def message(event: FetchedEvent) -> str:
    """What the endpoint is told, as JSON: nothing that the credential says."""
    data = {"id": event.resource_id, "status": event.details.status}
    return json.dumps({"type": event.type, "timestamp": event.received_at.isoformat(), "data": data})


def refusal(status: int, retry_after: str | None, now: datetime) -> Retry | GiveUp | None:
    """What an answer asks for; None if the message has been taken.

    Args:
        status: the answer's.
        retry_after: its header, if it is there.
        now: what a date in the header is counted from.
    """
    if httpx.codes.is_success(status):
        return None
    if status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR:
        return Retry(after=_seconds(retry_after, now))
    if status == httpx.codes.GONE:
        return GiveUp("the endpoint is gone (410): change NOTIFY_URL, or uninstall notify")
    return GiveUp(f"the endpoint answered {status}")


def _seconds(retry_after: str | None, now: datetime) -> float | None:
    """How long to wait, of the header's two forms, seconds and a date; None where it does not say."""
    if retry_after is None:
        return None
    try:
        wait = float(int(retry_after)) if retry_after.isdecimal() else (_date(retry_after) - now).total_seconds()
    except (ValueError, OverflowError):
        return None
    return min(max(wait, 0.0), _WEEK)


def _date(text: str) -> datetime:
    return parsedate_to_datetime(text).replace(tzinfo=UTC)  # HTTP knows no other zone.
