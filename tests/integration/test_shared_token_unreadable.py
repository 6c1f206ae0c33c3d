"""Somebody else has written where the fleet shares its token: it is replaced, said once, and holds nobody up."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from redis import Redis
from structlog.testing import capture_logs
from token_fleet import Platform, Time, at_once, fleet, serving
from waiting import until_async

DAY_MS = 86_400_000


@pytest.fixture
def platform() -> Iterator[Platform]:
    with serving() as platform:
        yield platform


def of(kind: str) -> Callable[[Redis, str], object]:
    """Put a value of that type under a name."""
    return {
        "hash": lambda redis, name: redis.hset(name, "a", "b"),
        "list": lambda redis, name: redis.lpush(name, "a"),
        "text": lambda redis, name: redis.set(name, b"plain \xff text"),
        "text for a day": lambda redis, name: redis.set(name, b"plain", px=DAY_MS),
    }[kind]


@pytest.mark.parametrize("kind", ["hash", "list", "text", "text for a day"])
@pytest.mark.parametrize("suffix", ["", ":lock", ":refused"])
async def test_what_somebody_else_has_written_there_is_replaced_and_shared_again(
    platform: Platform, redis_url: str, redis_client: Redis, suffix: str, kind: str
) -> None:
    of(kind)(redis_client, platform.key + suffix)
    async with fleet(3, platform, redis_url) as members:
        with capture_logs() as logs:
            assert await at_once(members) == ["p"] * 3
            said = [entry["event"] for entry in logs]
            platform.good.clear()
            for member in members:  # They share still, whatever stood there.
                assert await member.get() == "p"
    assert platform.waiting == 2
    assert "token_not_shared" not in said
    assert redis_client.type(platform.key) == b"string"
    assert redis_client.pttl(platform.key) > 0
    assert not redis_client.exists(f"{platform.key}:lock")
    # Not of a text where a refusal stands: what another secret has sealed looks the same.
    whose = 0 if suffix == ":refused" and kind.startswith("text") else 1
    assert len({entry["key"] for entry in logs if "key" in entry}) == whose
    assert said.count("shared_unreadable") + said.count("token_not_ours") <= len(members)


@pytest.mark.parametrize("kind", ["hash", "list", "text", "text for a day"])
@pytest.mark.parametrize("suffix", ["", ":lock", ":refused"])
async def test_what_somebody_else_has_written_there_is_not_waited_for(
    platform: Platform, redis_url: str, redis_client: Redis, suffix: str, kind: str
) -> None:
    of(kind)(redis_client, platform.key + suffix)
    time = Time()
    async with fleet(1, platform, redis_url, clock=time.clock, sleep=time.sleep) as (member,):
        assert await member.get() == "p"
    assert time.slept == []


async def test_a_lock_that_has_become_something_else_is_left_alone_and_the_token_shared(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    lock = f"{platform.key}:lock"
    async with fleet(2, platform, redis_url) as (member, other):
        with capture_logs() as logs:
            platform.answers.clear()
            outcome = asyncio.create_task(member.get())
            await until_async(lambda: platform.waiting, what="the token request")
            redis_client.delete(lock)
            redis_client.hset(lock, "a", "b")
            platform.answers.set()
            assert await outcome == "p"
            assert await other.get() == "p"
    assert platform.waiting == 1
    assert redis_client.type(lock) == b"hash"
    assert logs == []
