"""The store of one queue: a client of Redis, the queue's keys, and every script."""

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha1
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from credhook.store import Keys, lua

#: The scripts, each in a file of this name in credhook/store/scripts.
Script: TypeAlias = Literal[
    "accept", "announce", "arrived", "bring_forward", "claim", "clock_step", "deliveries", "emptied", "erase", "errors",
    "keep", "lift", "list", "pause", "permit", "process_lock", "put_back", "reclaim", "replay", "select", "semaphore",
    "sweep", "take", "write",
]  # fmt: skip

Client = TypeVar("Client", redis.Redis, redis.asyncio.Redis)


class Store(Generic[Client]):
    """Everything that Redis remembers about one queue, for an asynchronous or a synchronous client.

    Attributes:
        redis: the client.
        keys: the keys of the queue.
        retention: seconds that a settled event is remembered.
    """

    def __init__(self, redis: Client, queue: str, *, retention: int) -> None:
        self.redis: Client = redis
        self.keys = Keys(queue)
        self.retention = retention

    @property
    def queue(self) -> str:
        """Return the name of the queue."""
        return self.keys.queue

    def run(self, script: Script, arguments: Sequence[Any], *, keys: Sequence[str] = ()) -> Any:
        """Run a script and return its reply, from an asynchronous client as an awaitable.

        `keys`: the script's keys, unless it takes only the prefix.

        Raises:
            RedisError, OSError: Redis failed, or refused the script.
        """
        return self.run_through(self.redis.execute_command, script, arguments, keys=keys)

    def run_through(
        self, send: Callable[..., Any], script: Script, arguments: Sequence[Any], *, keys: Sequence[str] = ()
    ) -> Any:
        """Run a script as `run` does, by a function that sends one command and returns its reply."""
        keys = keys or (self.keys.prefix,)
        run = _run if isinstance(self.redis, redis.Redis) else _run_async
        return run(send, script, ("EVALSHA", sha_of(script), len(keys), *keys, *arguments))

    def clock(self: "SyncStore") -> int:
        """Return Redis's time in ms since the epoch: the clocks of hosts may differ."""
        seconds, microseconds = self.redis.time()
        return seconds * 1_000 + microseconds // 1_000


AsyncStore: TypeAlias = Store[redis.asyncio.Redis]
SyncStore: TypeAlias = Store[redis.Redis]


@cache
def sha_of(script: Script) -> str:
    """Return the digest by which Redis knows a script."""
    return sha1(lua.load(script).encode(), usedforsecurity=False).hexdigest()


def _run(send: Callable[..., Any], script: Script, command: tuple[Any, ...]) -> Any:
    try:
        return send(*command)
    except NoScriptError:  # Redis has never seen the script, or it was restarted.
        send("SCRIPT", "LOAD", lua.load(script))
        return send(*command)


async def _run_async(send: Callable[..., Any], script: Script, command: tuple[Any, ...]) -> Any:
    try:
        return await send(*command)
    except NoScriptError:
        await send("SCRIPT", "LOAD", lua.load(script))
        return await send(*command)
