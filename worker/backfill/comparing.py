"""The ledger's side of a reconciliation: which events have arrived, and those accepted that have not.

Deliveries go on meanwhile. From before the ledger is looked through until the last event is accepted they note what
they bring, and the script that accepts looks there (credhook/store/reconciled.lua): an event comes from one side only.
"""

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from credhook.events import Event
from credhook.store import EVENT, RECONCILED, Keys, accepting, lua
from credhook.worker.backfill.states import Missable

_ACCEPT: Final = lua.load("accept_missing.lua", ORIGIN="reconciliation")

#: Seconds that deliveries go on noting what they bring after a reconciliation has last been heard of.
NOTING: Final = 600
#: Records that are looked at in one round trip.
PAGE: Final = 500
#: Events that one script accepts, about: Redis does nothing else for two milliseconds.
BATCH: Final = 100


class Comparison:
    """The ledger of one queue, beside what must have happened."""

    def __init__(self, redis: Redis, *, queue: str, retention: int) -> None:
        """Compare with what is in `redis`; accept into `queue`, whose settled events live for `retention` seconds."""
        self._redis = redis
        self._index = Keys(queue)
        self._retention = retention
        self._script = redis.register_script(_ACCEPT)
        self._name = f"run {uuid4().hex}"
        self._accepts = False

    async def missing(
        self, events: Iterable[Missable], looked: Callable[[int], None] = lambda _: None
    ) -> list[Missable]:
        """Those that have not arrived, in their order; `looked` is told how many records were read. Nothing is written.

        Raises:
            RedisError: Redis failed.
        """
        left = dict.fromkeys(events)
        by_event = {(one.resource, kind): one for one in left for kind in one.types}
        async for resource, kind in self._records(looked):
            if (found := by_event.get((resource, kind))) is not None:
                left.pop(found, None)
        return list(left)

    async def accept_missing(
        self,
        events: Iterable[Missable],
        accepted: Callable[[Counter[str]], None],
        looked: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Accept those that have not arrived, once however often and wherever this is done.

        Events of one resource follow each other, in the order of its states. `accepted` is told, after each step, how
        many of each type have been accepted in it; `looked` as in `missing`.

        Raises:
            RedisError: Redis failed; whoever does it again accepts the others.
        """
        left = list(dict.fromkeys(events))
        while left:
            await self._have_arrivals_noted()
            left = await self.missing(left, looked)
            for batch in _batches(left):
                # Redis has forgotten what deliveries have brought since: look again.
                if not await self._arrivals_are_noted():
                    break
                accepted(await self._accept(batch))
                left = left[len(batch) :]

    async def _accept(self, batch: Sequence[Missable]) -> Counter[str]:
        events = [Event(one.types[0], one.resource) for one in batch]
        named = [(f"{RECONCILED}{event.type}:{event.resource_id}", event, None) for event in events]
        outcomes = await self._script(
            keys=accepting.keys(self._index),
            args=accepting.arguments(named, queue=self._index.queue, retention=self._retention, now=datetime.now(UTC)),
        )
        return Counter(event.type for event, outcome in zip(events, outcomes, strict=True) if outcome == b"accepted")

    async def _have_arrivals_noted(self) -> None:
        self._accepts = True
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.sadd(self._index.arrivals, self._name)
            pipeline.expire(self._index.arrivals, NOTING)
            await pipeline.execute()

    async def _arrivals_are_noted(self) -> bool:
        """Whether they have been since we asked for it; and so they will be, for a while."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.sismember(self._index.arrivals, self._name)
            pipeline.expire(self._index.arrivals, NOTING)
            noted, _ = await pipeline.execute()
        return bool(noted)

    async def _records(self, looked: Callable[[int], None]) -> AsyncIterator[tuple[str, str]]:
        """Resource and type of every event that the ledger has; of those that are there all along, at least once."""
        keys: list[bytes] = []
        async for key in self._redis.scan_iter(match=EVENT + "*", count=PAGE):
            keys.append(key)
            if len(keys) == PAGE:
                for record in await self._read(keys):
                    yield record
                looked(len(keys))
                keys = []
        for record in await self._read(keys):
            yield record
        looked(len(keys))

    async def _read(self, keys: Sequence[bytes]) -> list[tuple[str, str]]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.hmget(key.decode(errors="surrogateescape"), "resource", "type")
            if self._accepts:  # A long look should not outlast what it relies on.
                pipeline.expire(self._index.arrivals, NOTING)
            replies = await pipeline.execute(raise_on_error=False)
        found = []
        for values in replies[: len(keys)]:
            if isinstance(values, Exception) and not isinstance(values, ResponseError):
                raise values
            if isinstance(values, list) and None not in values:  # A key may be no hash.
                resource, kind = (value.decode(errors="replace") for value in values)
                found.append((resource, kind))
        return found


def _batches(events: Sequence[Missable]) -> Iterator[list[Missable]]:
    """Parts of a script's size; the events of one resource stay together."""
    batch: list[Missable] = []
    for _, of_one in itertools.groupby(events, key=lambda event: event.resource):
        batch += of_one
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
