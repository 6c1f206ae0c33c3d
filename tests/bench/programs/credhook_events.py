"""credhook: a handler that does nothing. Run as a program, it accepts events."""

import os
from datetime import UTC, datetime
from itertools import islice

from redis import Redis

from credhook.events import Event
from credhook.receiver.inbox import MAX_GROUP, Delivery
from credhook.store.job import accept_arguments
from credhook.store.store import Store
from credhook.worker.handlers.arguments import AsyncContext, FetchedEvent
from credhook.worker.handlers.registry import Handlers

nothing = Handlers("nothing")


@nothing.on("*")
async def handle(event: FetchedEvent, context: AsyncContext) -> None:
    """Take part in everything else that an event costs."""


def fill() -> None:
    """Write events as a receiver does, in groups as large as they may be."""
    store = Store(Redis.from_url(os.environ["REDIS_URL"]), "credhook", retention=604_800)
    deliveries = (
        Delivery(f"msg_{number:024x}", Event("openid4vc.issuance.completed", f"iss_{number:024x}"))
        for number in range(int(os.environ["EVENTS"]))
    )
    while group := list(islice(deliveries, MAX_GROUP)):
        store.run("accept", accept_arguments(group, queue="credhook", retention=604_800, now=datetime.now(UTC)))


if __name__ == "__main__":
    fill()
