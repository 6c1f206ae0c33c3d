"""Who asks for the fleet's token may be cancelled, and a worker may stop while it fetches one: nobody else waits."""

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest
from redis import Redis
from token_fleet import Member, Platform, fleet, serving
from turns import TurningLoop, on_turning_loop
from waiting import until_async

from credhook.store.connection import open_redis
from credhook.worker.api.threads import SyncApi
from credhook.worker.platform.token_key import granted_name


@pytest.fixture
def platform() -> Iterator[Platform]:
    with serving() as platform:
        yield platform


async def test_tasks_and_threads_of_a_process_share_a_fetch_whoever_of_them_is_cancelled(
    platform: Platform, redis_url: str
) -> None:
    async with fleet(1, platform, redis_url) as (member,):
        platform.answers.clear()
        first = asyncio.create_task(member.get())
        await until_async(lambda: platform.waiting, what="the token request")
        others = [asyncio.create_task(member.get()) for _ in range(3)]
        in_thread = SyncApi(member.api)
        threads = [asyncio.create_task(asyncio.to_thread(in_thread.presentations.get, "p")) for _ in range(3)]
        await asyncio.sleep(0.05)
        for given_up in (first, others[0]):
            given_up.cancel()
        await asyncio.wait({first, others[0]})
        assert first.cancelled()
        assert others[0].cancelled()
        platform.answers.set()
        assert await asyncio.gather(*others[1:]) == ["p"] * 2
        assert [presentation.id for presentation in await asyncio.gather(*threads)] == ["p"] * 3
    assert platform.waiting == 1


async def test_a_fetch_that_nobody_waits_for_any_more_is_the_fleets_all_the_same(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    async with fleet(2, platform, redis_url) as (first, second):
        platform.answers.clear()
        task = asyncio.create_task(first.get())
        await until_async(lambda: platform.waiting, what="the token request")
        task.cancel()
        await asyncio.wait({task})
        platform.answers.set()
        assert await second.get() == "p"
        assert set(redis_client.keys()) == {platform.key.encode(), granted_name(platform.key).encode()}
    assert platform.waiting == 1


async def test_a_fetch_that_is_given_up_is_taken_over_at_once(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    async with fleet(2, platform, redis_url) as (first, second):
        platform.answers.clear()
        task = asyncio.create_task(first.get())
        await until_async(lambda: platform.waiting, what="the token request")
        await first.auth.aclose()
        await asyncio.wait({task})
        assert task.cancelled()
        assert redis_client.keys() == []
        platform.answers.set()
        assert await second.get() == "p"


def test_a_fetch_may_be_given_up_after_any_turn_of_the_loop(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    """Whether before it has the lock, while it gets it, while it asks, or while it lets go: no lock is left behind."""

    met: set[tuple[bool, bool]] = set()  # Whether it had the lock, and whether it had asked.

    async def given_up_after(turns: int, loop: TurningLoop) -> bool:
        """Whether it had begun to be given up before it was through."""
        platform.waiting = 0
        member, asked = Member(platform, open_redis(redis_url)), []
        await member.redis.ping()
        task = loop.create_task(member.get())
        given_up: list[asyncio.Task[None]] = []

        def give_up() -> None:
            asked.append(not task.done())
            met.add((bool(redis_client.exists(f"{platform.key}:lock")), platform.waiting > 0))
            given_up.append(loop.create_task(member.auth.aclose()))

        loop.after(turns, give_up)
        await asyncio.wait({task})
        loop.after(-1, give_up)
        await asyncio.gather(*given_up)
        assert not redis_client.exists(f"{platform.key}:lock"), turns
        await member.aclose()
        return any(asked)

    async def work(loop: TurningLoop) -> None:
        while not met >= {(False, False), (True, False), (True, True), (False, True)}:  # It may pass some in one turn.
            for turns in count():
                redis_client.flushall()
                if not await given_up_after(turns, loop):
                    break

    on_turning_loop(work)
