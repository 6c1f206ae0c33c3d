"""Requests that nobody answers."""

from datetime import timedelta

import httpx

from credhook import AsyncContext, FetchedEvent, Presentation, Retry
from reminders.plugin import handlers


@handlers.on("openid4vc.verification.requested")
async def remind(event: FetchedEvent[Presentation], context: AsyncContext[httpx.AsyncClient]) -> None:
    """Remind the holder if the request has no answer after three days."""
    if not event.details.is_("requested", "pending"):
        return
    if event.age < (due := timedelta(days=3)):
        raise Retry(after=due - event.age, reason="not answered yet")
    headers = {"idempotency-key": context.idempotency_key}
    answer = await context.state.post(f"/requests/{event.resource_id}/reminders", headers=headers)
    answer.raise_for_status()
