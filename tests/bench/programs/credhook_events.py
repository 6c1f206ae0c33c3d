"""credhook: handlers that do nothing, or note when they were called. Run as a program, it accepts events."""

import asyncio
import os
import time

from redis.asyncio import Redis

from credhook.events import Event
from credhook.ledger import WHOLE
from credhook.receiver.inbox.inbox import Inbox
from credhook.worker.handlers.given import AsyncContext, FetchedEvent
from credhook.worker.handlers.registry import Handlers

#: Events that are on their way to Redis at once.
BLOCK = 5_000

nothing = Handlers("nothing")
noting = Handlers("noting")


@nothing.on("*")
async def handle(event: FetchedEvent, context: AsyncContext) -> None:
    """Take part in everything else that an event costs."""


@noting.on("*")
async def note(event: FetchedEvent, context: AsyncContext) -> None:
    """Write down the event's number and the time, by the clock that the generator uses."""
    os.write(_notes(), f"{event.webhook_id} {time.perf_counter():.6f}\n".encode())


def _notes(opened: list[int] = []) -> int:  # noqa: B006  It is opened once.
    if not opened:
        opened.append(os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    return opened[0]


async def fill() -> None:
    events = int(os.environ["EVENTS"])
    redis = Redis.from_url(os.environ["REDIS_URL"])
    # As in a ledger in use: nothing of it has to be looked for that an older version had accepted.
    await redis.set(WHOLE, int(time.time() * 1_000))
    inbox = Inbox(redis, queue="credhook", retention=604_800)
    for start in range(0, events, BLOCK):
        await asyncio.gather(
            *(
                inbox.accept(f"msg_{number:024x}", Event("openid4vc.issuance.completed", f"iss_{number:024x}"))
                for number in range(start, min(start + BLOCK, events))
            )
        )
    await inbox.aclose()


if __name__ == "__main__":
    asyncio.run(fill())
