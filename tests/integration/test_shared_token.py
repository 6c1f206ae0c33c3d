"""One token for a fleet: a real Redis, a token endpoint that counts, members that share and whoever else is there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from structlog.testing import capture_logs
from token_fleet import SECRET, Member, Platform, Time, at_once, fleet, serving
from waiting import until_async

from credhook.worker.api.calls.errors import Unauthorized


@pytest.fixture
def platform() -> Iterator[Platform]:
    with serving() as platform:
        yield platform


async def test_a_new_member_takes_the_token_that_is_there(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    time = Time()
    async with fleet(2, platform, redis_url, clock=time.clock) as (first, second):
        assert await first.get() == "p"
        assert 200_000 < redis_client.pttl(platform.key) <= 270_000
        redis_client.pexpire(platform.key, 100_000)
        time.now += 170
        assert await second.get() == "p"
        assert platform.waiting == 1
        mine, theirs = first.tokens.get(), second.tokens.get()
        assert mine
        assert theirs
        assert theirs.value == mine.value
        assert mine.renew_at == 1_000 + 270
        assert 1_000 + 200 < theirs.renew_at <= 1_000 + 270


async def test_members_that_ask_at_the_same_moment_make_one_token_request(platform: Platform, redis_url: str) -> None:
    """At first, after expiry, and after a 401."""
    time = Time()
    async with fleet(10, platform, redis_url, clock=time.clock) as members:
        assert await at_once(members) == ["p"] * 10
        assert platform.waiting == 1
        time.now += 270
        await members[0].redis.delete(platform.key)  # As Redis does by then.
        assert await at_once(members) == ["p"] * 10
        assert platform.waiting == 2
        platform.good.clear()
        assert await at_once(members) == ["p"] * 10
    assert platform.waiting == 3


async def test_members_with_another_secret_have_another_token(platform: Platform, redis_url: str) -> None:
    async with fleet(1, platform, redis_url) as (ours,), fleet(1, platform, redis_url, secret="x") as (other,):
        with capture_logs() as logs:
            assert await ours.get() == await other.get() == await ours.get() == "p"
        assert platform.granted == [f"token-0-of-{SECRET[::-1]}", "token-1-of-x"]
        assert [entry["event"] for entry in logs] == ["token_not_ours"]


@pytest.mark.parametrize("junk", [b"", b"\x01", b"plain text", b"\x01" + bytes(60)])
async def test_junk_under_the_tokens_key_is_replaced(
    platform: Platform, redis_url: str, redis_client: Redis, junk: bytes
) -> None:
    redis_client.set(platform.key, junk)
    redis_client.set(f"{platform.key}:refused", junk)
    async with fleet(2, platform, redis_url) as (first, second):
        assert await first.get() == await second.get() == "p"
    assert platform.waiting == 1


class Late(AsyncRedis):
    """A connection to Redis that is slow to lock: something else happens before."""

    def __init__(self, before: Callable[[], Awaitable[object]], **options: Any) -> None:
        super().__init__(**options)
        self.before = before

    async def set(self, *args: Any, **options: Any) -> Any:
        if options.get("nx"):
            await self.before()
        return await super().set(*args, **options)


@asynccontextmanager
async def late(
    platform: Platform, redis_client: Redis, before: Callable[[], Awaitable[object]]
) -> AsyncIterator[Member]:
    """A member with such a connection."""
    options = redis_client.connection_pool.connection_kwargs
    member = Member(platform, Late(before, host=options["host"], port=options["port"]))
    try:
        yield member
    finally:
        await member.aclose()


@pytest.mark.parametrize("refused", [False, True], ids=["granted", "refused"])
async def test_what_another_member_was_told_just_before_our_lock_is_not_asked_for_again(
    platform: Platform, redis_url: str, redis_client: Redis, refused: bool
) -> None:
    platform.refusal = (401, {}) if refused else None
    async with fleet(1, platform, redis_url) as (first,):

        async def told() -> None:
            await first.get()
            redis_client.pexpire(f"{platform.key}:refused", 9_000)

        async with late(platform, redis_client, told) as second:
            outcome = await second.get()
        assert isinstance(outcome, Unauthorized) if refused else outcome == "p"
    assert platform.waiting == 1
    assert not redis_client.exists(f"{platform.key}:lock")
    assert redis_client.pttl(f"{platform.key}:refused") <= 9_000  # Nobody was refused anew.


async def test_a_member_whose_lock_has_lapsed_leaves_the_next_ones_alone(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    async with fleet(1, platform, redis_url) as (member,):
        platform.answers.clear()
        outcome = asyncio.create_task(member.get())
        await until_async(lambda: platform.waiting, what="the token request")
        redis_client.set(f"{platform.key}:lock", "the next one's", px=60_000)
        platform.answers.set()
        assert await outcome == "p"
    assert redis_client.get(f"{platform.key}:lock") == b"the next one's"


# After a 401.


async def test_a_refused_token_is_forgotten_for_all_but_a_newer_one_stays(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    async with fleet(3, platform, redis_url) as (first, second, third):
        assert await at_once([first, second]) == ["p", "p"]
        platform.good.clear()
        assert await first.get() == "p"
        newer = redis_client.get(platform.key)
        assert await second.get() == "p"
        assert redis_client.get(platform.key) == newer
        assert await third.get() == "p"
    assert len(platform.granted) == 2


async def test_a_refused_token_is_not_taken_again_even_if_redis_still_has_it(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    async with fleet(1, platform, redis_url) as (member,):
        assert await member.get() == "p"
        sealed = redis_client.get(platform.key)
        token = member.tokens.get()
        assert token
        await member.tokens.invalidate(token)
        assert not redis_client.exists(platform.key)
        redis_client.set(platform.key, sealed or b"", px=100_000)
        assert await member.get() == "p"
    assert len(platform.granted) == 2


# Waiting for another member's fetch.


async def test_a_task_that_waits_for_another_members_fetch_does_not_hold_up_its_loop(
    platform: Platform, redis_url: str
) -> None:
    resting, rested = 0, asyncio.Event()

    async def rest(_: float) -> None:
        """Between two looks. Whoever holds the loop up instead rests elsewhere, or keeps the others from it."""
        nonlocal resting
        resting += 1
        await rested.wait()

    async with fleet(4, platform, redis_url, sleep=rest) as members:
        platform.answers.clear()
        tasks = [asyncio.create_task(member.get()) for member in members]
        await until_async(lambda: resting == 3, what="the rest of all but the one that has the lock")
        platform.answers.set()
        rested.set()
        assert await asyncio.gather(*tasks) == ["p"] * 4
    assert platform.waiting == 1


async def test_members_look_again_and_again_and_not_all_at_once(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    platform.answers.clear()
    async with fleet(1, platform, redis_url) as (first,):
        fetching = asyncio.create_task(first.get())
        await until_async(lambda: platform.waiting, what="the token request")
        for chance, pause in ((0.0, 0.05), (0.5, 0.1), (1.0, 0.15)):
            time = Time()
            options: dict[str, Any] = {"clock": time.clock, "sleep": time.sleep, "chance": lambda drawn=chance: drawn}
            async with fleet(1, platform, redis_url, **options) as (other,):
                waiting = asyncio.create_task(other.get())
                await until_async(lambda time=time: len(time.slept) > 5, what="its looks")  # type: ignore[misc]
                assert time.slept == pytest.approx([pause] * len(time.slept))
                waiting.cancel()
        assert platform.waiting == 1
        platform.answers.set()
        assert await fetching == "p"


@pytest.mark.parametrize("seconds", [0.5, 10.0])
async def test_a_lock_that_is_renewed_again_and_again_is_waited_for_only_so_long_and_stays_its_holders(
    platform: Platform, redis_url: str, redis_client: Redis, seconds: float
) -> None:
    lock, time = f"{platform.key}:lock", Time()
    longest = min(seconds + 0.5, 5.0)
    redis_client.set(lock, "somebody's", px=4_900)

    async def renewed(pause: float) -> None:
        redis_client.set(lock, "somebody's", px=4_900)
        await time.sleep(pause)

    async with fleet(1, platform, redis_url, timeout=seconds, clock=time.clock, sleep=renewed) as (member,):
        assert await member.get() == "p"
        assert 2 * longest < sum(time.slept) < 2 * longest + 0.2
        assert redis_client.get(lock) == b"somebody's"
    async with fleet(1, platform, redis_url) as (other,):
        assert await other.get() == "p"
    assert platform.waiting == 1
