"""A store whose scripts may all break off, with workers and a sweeper that are no processes."""

from collections.abc import Sequence
from typing import Any

from pydantic import SecretStr
from redis import Redis

from credhook.store import State
from credhook.store.replay import Replay, Settled
from credhook.worker.attempt.details import Snapshots
from credhook.worker.queue.claims import Candidates, Claim, Claims, Settlement
from credhook.worker.queue.sweeper import Sweeper
from support.store.accepting import everything
from support.store.failing_scripts import FailingStore
from support.store.stores import EVENT, INDEX, run_accept
from support.worker.claiming import COMPLETED, URGENT, lapse

DONE = {"test.first": "done"}


class BreakableStore:
    """The store, all of its scripts, and which events have been handled."""

    def __init__(self, redis: Redis) -> None:
        self.redis: Any = redis
        self.store = FailingStore(redis)
        self.handled: set[str] = set()
        self.held: list[Claim] = []
        self.claims = Claims(self.store.for_async_code(), lease=60.0, worker="w")
        wanted = dict.fromkeys((COMPLETED, URGENT), ("test.first",))
        self.sweeper = Sweeper(self.store, name="n", interval=1, lease=60.0, wanted=wanted)
        self.snapshots = Snapshots(self.store.for_async_code(), SecretStr("k" * 32))

    def deliver(self, *events: tuple[str, str, str]) -> list[bytes]:
        return run_accept(self.store, *events)  # type: ignore[no-any-return]

    async def take(self, **more: Any) -> list[Claim]:
        return list((await self.claims.take(10, urgent=3, **more)).claims)

    async def handle(self, claim: Claim) -> None:
        """As the processor does, with one handler."""
        if "test.first" not in claim.ended:
            assert not self.is_marked(claim.event_id), "run again after its done mark"
            self.handled.add(claim.event_id)
        await self.claims.settle(claim, Settlement(State.DONE, records=DONE, sealed=claim.seen))

    def is_marked(self, webhook_id: str) -> bool:
        return bool(self.redis.hget(EVENT + webhook_id, "h:test.first") == b"done")

    def pass_time(self) -> None:
        """Let all leases lapse, and let events have been in transit for long."""
        lapse(self.redis)
        for member in self.redis.zrange(INDEX.scheduled, 0, -1):
            self.redis.zadd(INDEX.scheduled, {member: 1})
        for key in self.redis.scan_iter(EVENT + "*"):
            if self.redis.hexists(key, "due"):
                self.redis.hset(key, "due", 1)

    def replay(self, webhook_id: str, state: str) -> Sequence[bytes]:
        return Replay(self.store)([Settled(webhook_id, state)])

    async def recover(self) -> None:
        """Workers and sweeper, until nothing is open."""
        for _ in range(8):
            for webhook_id in map(bytes.decode, self.redis.zrange(INDEX.unreadable, 0, -1)):  # Mended by now.
                self.replay(webhook_id, (self.redis.hget(EVENT + webhook_id, "state") or b"").decode())
            self.sweeper.unhandled.put_back()
            if not self.redis.exists(INDEX.open) and not self.redis.exists(INDEX.jobs):
                self.sweeper.run()
                return
            self.pass_time()
            self.sweeper.run()
            while claims := await self.take(candidates=Candidates.ALL):
                for claim in claims:
                    await self.handle(claim)
        raise AssertionError(everything(self.redis))
