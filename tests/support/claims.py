"""Events of one type, workers that claim them, and time that passes for their leases, on a Redis of the test's own."""

import json
from typing import Any

from accepting import inbox_on
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.events import Event
from credhook.store import Keys
from credhook.worker.queue.claim import Claim, Claimant
from credhook.worker.queue.claims import Claims
from credhook.worker.queue.failure import worker_died
from credhook.worker.queue.reclaim import RECLAIM
from credhook.worker.queue.sweeper import Sweeper

COMPLETED = "openid4vc.issuance.completed"
INDEX = Keys("credhook")


async def accept(redis: AsyncRedis, *events: tuple[str, str]) -> None:
    """As the receiver does, one after the other: webhook-id and resource."""
    async with inbox_on(redis) as inbox:
        for event_id, resource_id in events:
            await inbox.accept(event_id, Event(COMPLETED, resource_id))


def worker(redis: AsyncRedis, name: str = "w", lease: float = 60.0) -> Claims:
    return Claims(redis, queue="credhook", lease=lease, retention=3_600, worker=Claimant(name, name))


async def take_one(claims: Claims) -> Claim:
    (claim,) = (await claims.take(1, urgent=0)).claims
    return claim


def lapse(redis: Redis, *events: str) -> None:
    """As if the leases of these, or of all, had lapsed ten seconds ago, and they had been in transit for long."""
    lapsed = int(redis.time()[0]) * 1_000 - 10_000
    for key, when in ((INDEX.open, 1), (INDEX.leases, lapsed)):
        members: Any = events or redis.zrange(key, 0, -1)
        if members:
            redis.zadd(key, dict.fromkeys(members, when), xx=True)


def sweeper(redis: Redis) -> Sweeper:
    return Sweeper(redis, queue="credhook", name="n", interval=1, retention=3_600)


def died(redis: Redis, name: str, *, own_fault: bool = True) -> int:
    """Note that this worker has died, and return the number of its events."""
    script = redis.register_script(RECLAIM)
    return len(
        script(keys=[INDEX.prefix], args=[name, "1" if own_fault else "0", json.dumps(worker_died().counted()), 3_600])
    )
