"""credhook: a handler that does nothing. Run as a program, it accepts events."""

import os
from itertools import islice

from redis import Redis

from credhook.events import Event
from credhook.receiver.inbox import MAX_GROUP, Delivery, accept_command
from credhook.store import lua
from credhook.worker.handlers.registry import AsyncContext, FetchedEvent, Handlers

nothing = Handlers("nothing")


@nothing.on("*")
async def handle(event: FetchedEvent, context: AsyncContext) -> None:
    """Take part in everything else that an event costs."""


def fill() -> None:
    """Write events as a receiver does, in groups as large as they may be."""
    redis = Redis.from_url(os.environ["REDIS_URL"])
    redis.script_load(lua.load("accept"))
    deliveries = (
        Delivery(f"msg_{number:024x}", Event("openid4vc.issuance.completed", f"iss_{number:024x}"))
        for number in range(int(os.environ["EVENTS"]))
    )
    while group := list(islice(deliveries, MAX_GROUP)):
        redis.execute_command(*accept_command(group, queue="credhook", retention=604_800))  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    fill()
