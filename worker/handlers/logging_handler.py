"""The handler of a fresh install: one line per event, so that there is something to see. Ids and statuses only."""

from credhook.worker.handlers.given import AsyncContext, FetchedEvent
from credhook.worker.handlers.registry import Handlers

handlers = Handlers("log")


@handlers.on("*")
async def event(event: FetchedEvent, context: AsyncContext) -> None:
    """Log what happened to what."""
    context.log.info("event_fetched", status=event.details.status)
