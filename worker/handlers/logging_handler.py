"""The default handler: log one line per event, with ids and statuses only."""

from credhook.worker.handlers.arguments import AsyncContext, FetchedEvent
from credhook.worker.handlers.registry import Handlers

handlers = Handlers("log")

#: The platform may send any text as a status.
_STATUS_CHARACTERS = 64


@handlers.on("*")
async def event(event: FetchedEvent, context: AsyncContext) -> None:
    """Log the status of the event's resource."""
    context.log.info("event_fetched", status=event.details.status[:_STATUS_CHARACTERS])
