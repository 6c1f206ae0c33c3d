"""A store whose scripts may all break off, with workers and a sweeper that are no processes."""

from datetime import UTC, datetime
from typing import Any

from accepting import everything
from claiming import INDEX, lapse
from failing_scripts import AsyncScript, Script
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis_keys import EVENT, job_id

from credhook.events import EVENT_TYPES, Event
from credhook.receiver.inbox import ACCEPT, Delivery, accept_command
from credhook.store import State
from credhook.store.job import job_fields
from credhook.worker.attempt import details
from credhook.worker.commands import bulk
from credhook.worker.queue import claims as claiming_scripts
from credhook.worker.queue import leases, replay
from credhook.worker.queue.claims import Claim, Claimant, Claims, Settlement
from credhook.worker.queue.sweeper import Sweeper

DONE = {"test.first": "done"}


class BreakableStore:
    """The store, all of its scripts, and which events have been handled."""

    def __init__(self, redis: Redis) -> None:
        self.redis: Any = redis
        self.handled: set[str] = set()
        self.accept = Script(redis, ACCEPT)
        self.replaying, self.erasing = Script(redis, replay.REPLAY), Script(redis, bulk.ERASE)
        self.claims = self.worker("w")
        wanted = dict.fromkeys(EVENT_TYPES, ("test.first",))
        self.sweeper = Sweeper(redis, queue="credhook", name="n", interval=1, retention=3_600, wanted=wanted)
        self.putting_back = Script(redis, leases.PUT_BACK)
        self.sweeper._put_back._script = self.putting_back  # type: ignore[assignment]
        self.resuming = Script(redis, replay.REPLAY)
        self.sweeper.unhandled._replay._script = self.resuming  # type: ignore[assignment]
        self.snapshots = details.Snapshots(AsyncRedis(), "credhook", None)
        self.snapshots._keep = AsyncScript(redis, details._KEEP)  # type: ignore[assignment]
        self.reclaiming = Script(redis, leases.RECLAIM)

    def worker(self, name: str, *, lease: float = 60.0) -> Claims:
        claims: Any = Claims(AsyncRedis(), queue="credhook", lease=lease, retention=3_600, worker=Claimant(name, name))
        claims._claim = AsyncScript(self.redis, claiming_scripts.CLAIM)
        claims._take = AsyncScript(self.redis, claiming_scripts.TAKE)
        claims._write = AsyncScript(self.redis, claiming_scripts.WRITE)
        return claims  # type: ignore[no-any-return]

    def deliver(self, *events: tuple[str, str, str]) -> list[bytes]:
        """As the receiver does, in one group: webhook-id, type, resource."""
        group = [Delivery(one, Event(kind, resource)) for one, kind, resource in events]
        _, _, count, *rest = accept_command(group, queue="credhook", retention=3_600)
        assert isinstance(count, int)
        return self.accept(rest[:count], rest[count:])  # type: ignore[no-any-return]

    async def take(self, **more: Any) -> list[Claim]:
        return list((await self.claims.take(10, urgent=3, **more)).claims)

    async def handle(self, claim: Claim) -> None:
        """As the processor does, with one handler."""
        if "test.first" not in claim.ended:
            assert not self.is_marked(claim.event_id), "run again after its done mark"
            self.handled.add(claim.event_id)
        await self.claims.settle(claim, Settlement(State.DONE, records=DONE))

    def is_marked(self, webhook_id: str) -> bool:
        return bool(self.redis.hget(EVENT + webhook_id, "h:test.first") == b"done")

    def pass_time(self) -> None:
        """As if all leases had lapsed, and all that is in transit had had its time."""
        lapse(self.redis)
        for member in self.redis.zrange(INDEX.scheduled, 0, -1):
            self.redis.zadd(INDEX.scheduled, {member: 1})
        for key in self.redis.scan_iter(EVENT + "*"):
            if self.redis.hexists(key, "due"):
                self.redis.hset(key, "due", 1)

    def replay(self, webhook_id: str, state: str | bytes) -> Any:
        fields = [2, "origin", "credhook", "data", job_fields("credhook", datetime.now(UTC))["data"]]
        return self.replaying([INDEX.prefix], ["", "", "", "{}", *fields, webhook_id, job_id(webhook_id), state])

    async def recover(self) -> None:
        """Workers and sweeper, until nothing is open."""
        for _ in range(8):
            for webhook_id in self.redis.zrange(INDEX.unreadable, 0, -1):  # Mended by now, and replayed.
                self.replay(webhook_id.decode(), self.redis.hget(EVENT + webhook_id.decode(), "state") or b"")
            self.sweeper.unhandled.put_back()
            if not self.redis.exists(INDEX.open) and not self.redis.exists(INDEX.jobs):
                return
            self.pass_time()
            self.sweeper.run()
            while claims := await self.take(idle=True):
                for claim in claims:
                    await self.handle(claim)
        raise AssertionError(everything(self.redis))
