"""Urgent events before all others: presented data may be readable once, or for minutes."""

from collections.abc import AsyncIterator

import pytest
from accepting import inbox_on
from harness import COMPLETED, DATA
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis_keys import job_id
from stores import store_on

from credhook.events import Event
from credhook.receiver.inbox import Inbox
from credhook.store import Keys, State
from credhook.worker.queue.claims import Claimant, Claims, Settlement

INDEX = Keys("credhook")


@pytest.fixture
async def inbox(async_redis: AsyncRedis) -> AsyncIterator[Inbox]:
    async with inbox_on(async_redis) as inbox:
        yield inbox


@pytest.fixture
def claims(async_redis: AsyncRedis) -> Claims:
    return Claims(store_on(async_redis), lease=5.0, worker=Claimant("w", "token"))


async def test_urgent_events_without_end_leave_one_slot_in_four_to_the_others(inbox: Inbox, claims: Claims) -> None:
    for number in range(10):
        await inbox.accept(f"o{number}", Event(COMPLETED, f"iss_{number}"))
    for number in range(40):
        await inbox.accept(f"u{number}", Event(DATA, f"pre_{number}"))
    taken = []
    for _ in range(50):
        (claim,) = (await claims.take(1)).claims
        await claims.settle(claim, Settlement(State.DONE))
        taken.append(claim.event_id)
    kinds = "".join(one[0] for one in taken)
    assert all(kinds[start : start + 4].count("o") == 1 for start in range(0, 40, 4)), kinds
    assert [one for one in taken if one[0] == "o"] == [f"o{number}" for number in range(10)]


async def test_the_urgent_list_is_bounded_and_expires(inbox: Inbox, redis_client: Redis) -> None:
    redis_client.rpush(INDEX.urgent, *(job_id(f"old{number}") for number in range(10_000)))
    await inbox.accept("m1", Event(DATA, "pre_1"))
    assert redis_client.llen(INDEX.urgent) == 10_000
    assert redis_client.lindex(INDEX.urgent, -1) == job_id("m1").encode()
    assert 0 < redis_client.ttl(INDEX.urgent) <= 3_600


async def test_an_urgent_event_that_comes_back_is_urgent_still_and_its_hint_expires_too(
    inbox: Inbox, claims: Claims, redis_client: Redis
) -> None:
    for number in range(3):
        await inbox.accept(f"u{number}", Event(DATA, f"pre_{number}"))
    for claim in (await claims.take(3, urgent=3)).claims:
        await claims.settle(claim, Settlement(State.WAITING, "NotFound 404", wait=0.0))
    await inbox.accept("m1", Event(COMPLETED, "iss_1"))
    assert [claim.event_id for claim in (await claims.take(1, urgent=1)).claims] == ["u0"]
    assert redis_client.llen(INDEX.urgent) == 2
    assert 0 < redis_client.ttl(INDEX.urgent) <= 3_600
