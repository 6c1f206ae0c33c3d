"""Offers that nobody takes."""

import httpx

from credhook import AsyncContext, FetchedEvent, Issuance
from reminders.plugin import handlers


@handlers.on("openid4vc.issuance.expired")
async def renew(event: FetchedEvent[Issuance], context: AsyncContext[httpx.AsyncClient]) -> None:
    """Ask for a new offer when an offer has expired."""
    headers = {"idempotency-key": context.idempotency_key}
    answer = await context.state.post(f"/offers/{event.resource_id}/renewals", headers=headers)
    answer.raise_for_status()
