"""Urgent events before all others: presented data may be readable once, or for minutes."""

from collections.abc import AsyncIterator

import pytest
from accepting import inbox_on
from harness import COMPLETED, DATA, Harness
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


def test_urgent_events_without_end_leave_one_slot_in_four_to_the_others(harness: Harness) -> None:
    ordinary, urgent = [f"o{number}" for number in range(10)], [f"u{number}" for number in range(40)]
    for one in ordinary:
        harness.happens(one)
    for one in urgent:
        harness.happens(one, DATA)
    with harness.worker(CREDHOOK_CONCURRENCY="1"):
        for one in (*ordinary, *urgent):
            harness.reaches(one, "done")
    handled = [line.split()[1] for line in harness.notes()]
    for start in (0, 8, 16, 24):
        of_others = sum(one.startswith("o") for one in handled[start : start + 8])
        assert 1 <= of_others <= 3, handled
    assert sorted(handled) == sorted(ordinary + urgent)


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
