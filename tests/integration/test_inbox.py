"""The inbox by itself: whoever waits hears of it, and what comes after goes on."""

import asyncio

import pytest
import redis.asyncio
from accepting import inbox_on
from redis import Redis

from receiver.events import Event
from receiver.inbox import Unavailable
from receiver.script import Outcome

EVENT = Event("openid4vc.issuance.completed", "iss_1")


async def test_what_cannot_be_written_is_refused_and_silences_nobody(async_redis: redis.asyncio.Redis) -> None:
    async with inbox_on(async_redis) as inbox:
        assert await inbox.accept("m1", EVENT) is Outcome.ACCEPTED
        for _ in range(2):  # With a connection that stands, and with one that is opened anew.
            with pytest.raises(Unavailable, match="UnicodeEncodeError"):
                await inbox.accept("\ud800", EVENT)
        assert await inbox.accept("m1", EVENT) is Outcome.DUPLICATE


async def test_all_that_come_at_once_are_told_each_its_own(async_redis: redis.asyncio.Redis) -> None:
    async with inbox_on(async_redis) as inbox:
        ids = [f"m{number % 700}" for number in range(1_400)]  # More than one group, each id twice.
        outcomes = await asyncio.gather(*(inbox.accept(one, EVENT) for one in ids))
    assert outcomes == [Outcome.ACCEPTED] * 700 + [Outcome.DUPLICATE] * 700


async def test_a_connection_that_was_cut_meanwhile_costs_nobody_anything(
    async_redis: redis.asyncio.Redis, redis_client: Redis
) -> None:
    async with inbox_on(async_redis) as inbox:
        for number in range(20):
            redis_client.client_kill_filter(_type="normal", skipme=True)
            assert await inbox.accept(f"m{number}", EVENT) is Outcome.ACCEPTED


async def test_a_request_that_went_away_is_written_with_its_group(
    async_redis: redis.asyncio.Redis, redis_client: Redis
) -> None:
    async with inbox_on(async_redis) as inbox:
        gone = asyncio.create_task(inbox.accept("m1", EVENT))
        stays = asyncio.create_task(inbox.accept("m2", EVENT))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays is Outcome.ACCEPTED
    assert redis_client.exists("credhook:event:m1")
