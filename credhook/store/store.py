"""The store of one queue: a client of Redis, the queue's keys, and every script."""

from collections.abc import Sequence
from hashlib import sha1
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import redis
import redis.asyncio

from credhook.store import SCHEMA, Keys, lua
from credhook.store.errors import WRONG_SCHEMA, StoreRefusal

#: The scripts, each in a file of this name in credhook/store/scripts.
Script: TypeAlias = Literal[
    "accept", "add", "announce", "claim", "erase", "errors", "keep", "lease", "pause", "permit", "put_back",
    "reclaim", "replay", "select", "semaphore", "sweep", "take", "write",
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
        self._scripts: dict[Script, Any] = {}

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
        if script not in self._scripts:
            self._scripts[script] = self.redis.register_script(lua.load(script))
        return self._scripts[script](keys=keys or [self.keys.prefix], args=arguments)

    def check_schema(self: "SyncStore", *, write: bool = True) -> None:
        """Check the queue's schema number; with `write`, write it if there is none.

        Each script that reads or writes records compares the number as well, see keys.lua.

        Raises:
            StoreRefusal: the number is another version's; `wrong_schema` returns what to do.
        """
        if write:
            self.redis.set(self.keys.schema, SCHEMA, nx=True)
        self._compare(self.redis.get(self.keys.schema))

    async def check_schema_async(self: "AsyncStore", *, write: bool = True) -> None:
        """Do what `check_schema` does."""
        found = await self.redis.get(self.keys.schema)
        if found is None and write:  # A full Redis takes no SET, and repeated deliveries are acknowledged all the same.
            await self.redis.set(self.keys.schema, SCHEMA, nx=True)
            found = await self.redis.get(self.keys.schema)
        self._compare(found)

    def _compare(self, found: object) -> None:
        if found not in {None, str(SCHEMA).encode()}:
            number = found.decode(errors="replace") if isinstance(found, bytes) else ""
            raise StoreRefusal(f"{WRONG_SCHEMA} {self.queue} {number}")

    def clock(self: "SyncStore") -> int:
        """Return Redis's time in ms since the epoch: the clocks of hosts may differ."""
        seconds, microseconds = self.redis.time()
        return seconds * 1_000 + microseconds // 1_000


AsyncStore: TypeAlias = Store[redis.asyncio.Redis]
SyncStore: TypeAlias = Store[redis.Redis]


def sha_of(script: Script) -> str:
    """Return the digest by which Redis knows a script."""
    return sha1(lua.load(script).encode(), usedforsecurity=False).hexdigest()
