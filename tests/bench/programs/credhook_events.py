"""credhook: a handler that does nothing. Run as a program, it accepts events."""

import os
from collections.abc import Iterator
from itertools import islice

from redis import Redis

from credhook.events import Event
from credhook.receiver.inbox import MAX_GROUP, Delivery, accept_command
from credhook.store import lua
from credhook.store.connection import Command
from credhook.worker.handlers.registry import AsyncContext, FetchedEvent, Handlers

#: Groups that are on their way to Redis at once.
AHEAD = 8

nothing = Handlers("nothing")


@nothing.on("*")
async def handle(event: FetchedEvent, context: AsyncContext) -> None:
    """Take part in everything else that an event costs."""


def fill() -> None:
    """Write events as a receiver does, in groups as large as they may be."""
    redis = Redis.from_url(os.environ["REDIS_URL"])
    connection = redis.connection_pool.get_connection()
    connection.send_command("SCRIPT", "LOAD", lua.load("accept"))  # type: ignore[no-untyped-call]
    connection.read_response()
    under_way = 0
    for command in _groups(int(os.environ["EVENTS"])):
        connection.send_command(*command)  # type: ignore[no-untyped-call]
        under_way += 1
        if under_way > AHEAD:
            connection.read_response()
            under_way -= 1
    for _ in range(under_way):
        connection.read_response()


def _groups(events: int) -> Iterator[Command]:
    deliveries = (
        Delivery(f"msg_{number:024x}", Event("openid4vc.issuance.completed", f"iss_{number:024x}"))
        for number in range(events)
    )
    while group := list(islice(deliveries, MAX_GROUP)):
        yield accept_command(group, queue="credhook", retention=604_800)


if __name__ == "__main__":
    fill()
