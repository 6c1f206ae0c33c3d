"""A queue of events of one type, workers that claim them, and time that passes for their leases. Redis is real."""

from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.events import Event
from credhook.store import State
from credhook.store.erase import Erasure, lift
from credhook.store.selection import EventSummary, Selection
from credhook.worker.queue.claims import Candidates, Claim, Claims, Settlement
from credhook.worker.queue.leases import note_death
from credhook.worker.queue.sweeper import Sweeper
from support.store.accepting import inbox_on, record
from support.store.stores import EVENT, INDEX, job_id, store_on

COMPLETED, URGENT = "openid4vc.issuance.completed", "openid4vc.verification.data"


class EventQueue:
    """The queue `credhook` on a Redis of the test's own."""

    def __init__(self, async_redis: AsyncRedis, redis: Redis) -> None:
        self._async, self.redis = async_redis, redis

    async def accept(self, *events: str, kind: str = COMPLETED) -> None:
        """Accept events as the receiver does, one after the other: `<webhook-id>` or `<webhook-id>/<resource>`."""
        async with inbox_on(self._async) as inbox:
            for event in events:
                event_id, _, resource = event.partition("/")
                await inbox.accept(event_id, Event(kind, resource or f"r-{event_id}"))

    def worker(self, name: str = "w") -> Claims:
        return Claims(store_on(self._async), lease=60.0, worker=name)

    async def take(self, name: str = "w", *, candidates: Candidates = Candidates.NONE) -> list[Claim]:
        """Claim up to ten events for the worker of that name."""
        return list((await self.worker(name).take(10, urgent=0, candidates=candidates)).claims)

    async def take_one(self, name: str = "w") -> Claim:
        return await take_one(self.worker(name))

    async def follow(self, claim: Claim, name: str = "w") -> str | None:
        """Settle the claim as done, and return the event that follows."""
        _, following = await self.worker(name).settle(claim, Settlement(State.DONE), follow=True)
        return following.event_id if following else None

    async def claim(self, event_id: str) -> Claim:
        """Claim that event for the worker `w`, although its retry is not due."""
        self.redis.hset(EVENT + event_id, "due", 1)
        claim = await self.worker().claim(event_id)
        assert isinstance(claim, Claim)
        return claim

    def lapse(self, *events: str) -> None:
        lapse(self.redis, *events)

    def sweeper(self, **sizes: Any) -> Sweeper:
        return Sweeper(store_on(self.redis), name="n", interval=1, lease=60.0, **sizes)

    def sweep(self, **sizes: int) -> int:
        """Run one round of a sweeper, and return the number of events that it put back."""
        return self.sweeper(**sizes).run()

    def die(self, name: str, *, own_fault: bool = True) -> int:
        """Note that this worker has died, and return the number of its events."""
        return len(note_death(store_on(self.redis), name, "own" if own_fault else "ended"))

    def erase(self, event_id: str) -> None:
        """Erase the event, and let it come again."""
        store, resource = store_on(self.redis), self.record(event_id).get("resource", "")
        Erasure(store, Selection())([EventSummary(event_id)])
        lift(store, resource)

    def record(self, event_id: str) -> dict[str, str]:
        return record(self.redis, event_id)

    def holder_of(self, resource: str) -> str:
        lock: Any = self.redis.hget(INDEX.locks, resource)
        return str(lock.decode().split(" ")[0])

    def plant(self, *ids: str, moved: float, state: str = "accepted", due: int | None = None) -> None:
        """Write open events without jobs; the first was moved at `moved`, in ms, the others 1 ms apart after it."""
        pipeline = self.redis.pipeline(transaction=False)
        for place, event_id in enumerate(ids):
            fields: dict[Any, Any] = {"state": state, "type": COMPLETED, "resource": event_id, "received": 1}
            pipeline.hset(EVENT + event_id, mapping=fields if due is None else {**fields, "due": due})
            pipeline.zadd(INDEX.open, {event_id: moved + place})
        pipeline.execute()

    def push_job(self, *ids: str) -> None:
        self.redis.rpush(INDEX.jobs, *map(job_id, ids))


async def take_one(claims: Claims) -> Claim:
    (claim,) = (await claims.take(1, urgent=0)).claims
    return claim


def lapse(redis: Redis, *events: str) -> None:
    """Let the leases of these events, or of all, end ten seconds ago, and the events be in transit for long."""
    lapsed = int(redis.time()[0]) * 1_000 - 10_000
    for key, when in ((INDEX.open, 1), (INDEX.leases, lapsed)):
        members: Any = events or redis.zrange(key, 0, -1)
        if members:
            redis.zadd(key, dict.fromkeys(members, when), xx=True, lt=True)
