"""What an event costs in Redis: the figure that the README gives."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from credhook.events import Event
from credhook.ledger import State
from credhook.receiver.inbox.inbox import Inbox
from credhook.worker.queue.claim import Claim, Settlement
from credhook.worker.queue.claims import Claims

README = (Path(__file__).parents[2] / "README.md").read_text()
COUNT = 1_000


@pytest.fixture
def leisurely(redis_client: Redis) -> Iterator[None]:
    """Redis fsyncs once a second: what is measured is memory."""
    redis_client.config_set("appendfsync", "everysec")
    yield
    redis_client.config_set("appendfsync", "always")


@pytest.mark.usefixtures("leisurely")
async def test_a_settled_event_costs_no_more_than_the_readme_says(
    async_redis: AsyncRedis, redis_client: Redis, redis_url: str
) -> None:
    ((stated, for_a_day),) = re.findall(
        r"about (\d+) bytes once it is settled, for the retention time, and about\s+(\d+) more for a day", README
    )
    inbox = Inbox(AsyncRedis.from_url(redis_url), queue="credhook", retention=604_800)
    claims = Claims(async_redis, queue="credhook", lease=15, retention=604_800)
    # Warm: scripts, and the tables that Redis keeps per kind of key.
    before = 0
    for batch in range(2):
        for number in range(COUNT):
            webhook_id = f"msg_{batch}{number:023}"
            await inbox.accept(webhook_id, Event("openid4vc.verification.verified", f"cmfw{batch}{number:020}"))
            claim = await claims.claim(webhook_id)
            assert isinstance(claim, Claim)
            records = {"accounts.open_account": "done 12"}
            await claims.settle(claim, Settlement(State.DONE, records=records, latest=(3, 1_790_000_000_000)))
        # RQ's worker deletes its own records of a job that has succeeded.
        for key in redis_client.scan_iter("rq:*"):
            redis_client.delete(key)
        redis_client.delete("credhook:credhook:urgent")  # Of the length of the backlog, and there is none.
        used = int(redis_client.info("memory")["used_memory"])
        whole, before = (used - before) / COUNT, used
    for key in redis_client.scan_iter("credhook:resource:*1" + "?" * 20):
        redis_client.delete(key)
    day = (before - int(redis_client.info("memory")["used_memory"])) / COUNT
    await inbox.aclose()
    print(f"\n{whole - day:.0f} bytes for a settled event, {day:.0f} for a day")  # noqa: T201  For the README.
    assert 100 < whole - day < int(stated) * 1.15
    assert 50 < day < int(for_a_day) * 1.15
