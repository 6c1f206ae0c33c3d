"""Events in the store as the receiver leaves them, without the socket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from stores import store_on

from credhook.events import Event
from credhook.receiver.inbox import Inbox

#: How each kind of key is read whole.
READ = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"list": ("LRANGE",),
    b"set": ("SMEMBERS",),
    b"zset": ("ZRANGE",),
    b"stream": ("XRANGE",),
}
RANGE = {b"list": (0, -1), b"zset": (0, -1), b"stream": ("-", "+")}


def accept(redis_url: str, webhook_id: str, event_type: str, resource_id: str, *, queue: str = "credhook") -> None:
    """Write one event down, as the receiver does."""

    async def write() -> None:
        async with inbox_on(AsyncRedis.from_url(redis_url), queue=queue) as inbox:
            await inbox.accept(webhook_id, Event(event_type, resource_id))

    asyncio.run(write())


@asynccontextmanager
async def inbox_on(
    redis: AsyncRedis, *, queue: str = "credhook", durability: str = "standard", retention: int = 3_600
) -> AsyncIterator[Inbox]:
    """The receiver's inbox, for the length of the block; it closes the client's connections, not the client."""
    inbox = Inbox(store_on(redis, queue, retention=retention), durability=durability)
    try:
        yield inbox
    finally:
        await inbox.aclose()


def record(redis: Redis, webhook_id: str) -> dict[str, str]:
    """What the store says of it."""
    fields: dict[Any, Any] = redis.hgetall("credhook:credhook:event:" + webhook_id)
    return {name.decode(): value.decode() for name, value in fields.items()}


def reached(redis: Redis, webhook_id: str, state: str) -> dict[str, str]:
    """The same, if that is its state; otherwise nothing."""
    found = record(redis, webhook_id)
    return found if found.get("state") == state else {}


def everything(redis: Redis, text_of: Callable[[Any], str] = repr) -> str:
    """All that Redis holds, keys and values, as text to search in."""
    found = []
    for key in redis.scan_iter():
        kind: Any = redis.type(key)
        if kind in READ:  # A key may go between the two commands.
            value = redis.execute_command(*READ[kind], key, *RANGE.get(kind, ()))  # type: ignore[no-untyped-call]
            found.append(f"{text_of(key)} {text_of(value)}")
    return "\n".join(found)
