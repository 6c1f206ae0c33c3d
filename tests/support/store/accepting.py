"""Events in the store as the receiver leaves them, without the socket."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.receiver.inbox import Inbox
from support.store.stores import run_accept, store_on

#: How each kind of key is read whole.
READ: dict[bytes, tuple[Any, ...]] = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"list": ("LRANGE", 0, -1),
    b"set": ("SMEMBERS",),
    b"zset": ("ZRANGE", 0, -1),
    b"stream": ("XRANGE", "-", "+"),
}


def accept(redis_url: str, webhook_id: str, event_type: str, resource_id: str, *, queue: str = "credhook") -> None:
    """Write one event down, as the receiver does."""
    with Redis.from_url(redis_url) as redis:
        assert run_accept(store_on(redis, queue), (webhook_id, event_type, resource_id)) != [b"unreadable"]


@asynccontextmanager
async def inbox_on(redis: AsyncRedis, *, durability: str = "standard") -> AsyncIterator[Inbox]:
    """The receiver's inbox, for the length of the block; it closes the client's connections, not the client."""
    inbox = Inbox(store_on(redis), durability=durability)
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


def values(redis: Redis, pattern: str = "*") -> Iterator[tuple[bytes, Any]]:
    """Yield the keys that fit the pattern, with what they hold."""
    for key in redis.scan_iter(pattern):
        if read := READ.get(cast(bytes, redis.type(key))):  # A key may go between the two commands.
            yield key, redis.execute_command(read[0], key, *read[1:])  # type: ignore[no-untyped-call]


def everything(redis: Redis, text_of: Callable[[Any], str] = repr) -> str:
    """All that Redis holds, keys and values, as text to search in."""
    return "\n".join(f"{text_of(key)} {text_of(value)}" for key, value in values(redis))
