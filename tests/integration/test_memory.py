"""What an event costs in Redis: the figure that the README gives."""

import re
from pathlib import Path

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from receiver.events import Event
from receiver.inbox import Inbox
from worker.claims import Claim, Claims

README = (Path(__file__).parents[2] / "README.md").read_text()
COUNT = 1_000


async def test_a_settled_event_costs_no_more_than_the_readme_says(
    async_redis: AsyncRedis, redis_client: Redis, redis_url: str
) -> None:
    (stated,) = re.findall(r"about (\d+) bytes once it is settled", README)
    inbox = Inbox(AsyncRedis.from_url(redis_url), queue="credhook", retention=604_800)
    claims = Claims(async_redis, queue="credhook", lease=15, retention=604_800)
    # Warm: scripts, and the tables that Redis keeps per kind of key.
    before = 0
    for batch in range(2):
        for number in range(COUNT):
            webhook_id = f"msg_{batch}{number:023}"
            await inbox.accept(webhook_id, Event("openid4vc.verification.verified", f"cmfw{number:021}"))
            claim = await claims.claim(webhook_id)
            assert isinstance(claim, Claim)
            await claims.record(claim, "accounts.open_account", "done")
            await claims.done(claim)
        # RQ's worker deletes its own records of a job that has succeeded.
        for key in redis_client.scan_iter("rq:*"):
            redis_client.delete(key)
        used = int(redis_client.info("memory")["used_memory"])
        cost, before = (used - before) / COUNT, used
    await inbox.aclose()
    print(f"\n{cost:.0f} bytes for a settled event")  # noqa: T201  The figure for the README.
    assert 100 < cost < int(stated) * 1.15
