"""Acknowledged means kept: receiver and Redis die at random instants while a sender repeats."""
# ruff: noqa: T201  The counts are what `make soak` is run for.

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis import Redis
from rq.utils import as_text

from support.process.serving import Receiver, receiver
from support.receiver.repeating_sender import deliver_all
from support.redis.redis_server import MortalRedis
from support.store.stores import EVENT, INDEX, job_id
from support.worker.fleet_harness import SHORT, SIZES

Breaks = Callable[[], Awaitable[None]]


@dataclass
class Ingestion:
    """Deliveries, at least so many, for as long as something is broken again and again, so many times.

    Attributes:
        count: deliveries at least.
        times: how often it is broken.
        pause: seconds of each sender between two deliveries.
        supplied: the ids that were delivered.
        answers: what the sender was answered.
    """

    count: int
    times: int
    pause: float = 0.0
    supplied: list[str] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)
    broken: int = 0

    async def run(self, url: Callable[[], str], breaks: Breaks) -> None:
        delivering = asyncio.create_task(deliver_all(url, self._supply(), pause=self.pause))
        while self.broken < self.times:
            assert not delivering.done()
            await breaks()
            self.broken += 1
        self.answers = await delivering

    def _supply(self) -> Iterator[str]:
        while len(self.supplied) < self.count or self.broken < self.times:
            self.supplied.append(f"msg_{len(self.supplied):06}")
            yield self.supplied[-1]

    def is_kept(self, what: str, redis: Redis) -> None:
        """Assert that every delivery has one record and one job, and that there is nothing else. Print the counts."""
        pipeline = redis.pipeline(transaction=False)
        for webhook_id in self.supplied:
            pipeline.exists(EVENT + webhook_id)
        missing = sum(not exists for exists in pipeline.execute())
        queued = Counter(as_text(job) for job in redis.lrange(INDEX.jobs, 0, -1))
        doubled = sum(count - 1 for count in queued.values())
        print(f"\n{len(self.supplied)} deliveries, {self.broken} times {what}: missing {missing}, doubled {doubled}; ")
        print(f"answers {dict(self.answers)}, 0 where there was none")
        assert (missing, doubled) == (0, 0)
        assert queued.keys() == {job_id(webhook_id) for webhook_id in self.supplied}
        assert redis.zcard(INDEX.open) == len(self.supplied)


@pytest.mark.parametrize("size", SIZES)
async def test_receiver_killed_at_random_instants(
    tmp_path: Path, redis_url: str, redis_client: Redis, size: str
) -> None:
    ingestion = Ingestion(300, 4, pause=0.05) if size == SHORT else Ingestion(20_000, 200)
    process = Receiver(tmp_path, redis_url)

    async def kill() -> None:
        nonlocal process
        await asyncio.sleep(random.uniform(0.0, 0.15))
        process.kill()
        process = await asyncio.to_thread(Receiver, tmp_path, redis_url)

    await ingestion.run(lambda: process.url, kill)
    process.kill()
    ingestion.is_kept("kill -9 of the receiver", redis_client)


@pytest.mark.parametrize("size", SIZES)
async def test_redis_killed_at_random_instants(tmp_path: Path, size: str) -> None:
    ingestion = Ingestion(300, 3, pause=0.05) if size == SHORT else Ingestion(20_000, 20)

    async def kill() -> None:
        await asyncio.sleep(random.uniform(0.0, 0.4))
        redis.kill()
        await asyncio.to_thread(redis.start)

    with MortalRedis(tmp_path) as redis:
        with receiver(tmp_path, redis.url) as process:
            await ingestion.run(lambda: process.url, kill)
            assert "Traceback" not in process.text
        with Redis.from_url(redis.url) as client:
            ingestion.is_kept("kill -9 of Redis", client)
