"""Redis is no help: each member then has a token of its own, and leaves Redis alone for a while."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress

import pytest
from redis import Redis
from structlog.testing import capture_logs
from token_fleet import Member, Platform, Time, fleet, serving
from waiting import until_async

from credhook.sandbox.local.local_redis import free_port
from credhook.store.connection import open_redis
from credhook.worker.platform.shared_token import LEFT_ALONE

#: Seconds until a Redis that is silent counts as gone, in these tests.
SILENCE = 0.3


@pytest.fixture
def platform() -> Iterator[Platform]:
    with serving() as platform:
        yield platform


@asynccontextmanager
async def impatient(platform: Platform, redis_url: str, time: Time | None = None) -> AsyncIterator[Member]:
    """A member whose connection gives up soon; without a time of its own it has everybody's."""
    redis = open_redis(redis_url, socket_timeout=SILENCE, socket_connect_timeout=SILENCE)
    member = Member(platform, redis, clock=time.clock, sleep=time.sleep) if time else Member(platform, redis)
    try:
        yield member
    finally:
        await member.aclose()


async def has_a_token_of_its_own(platform: Platform, redis_url: str) -> None:
    """At first, and after a 401; and says so once."""
    time = Time()
    async with impatient(platform, redis_url, time) as member:
        with capture_logs() as logs:
            assert await member.get() == "p"
            platform.good.clear()
            assert await member.get() == "p"
            assert [entry["event"] for entry in logs] == ["token_not_shared"]
            assert len(platform.granted) == 2
            time.now += LEFT_ALONE + 1
            platform.good.clear()
            assert await member.get() == "p"
            assert [entry["event"] for entry in logs] == ["token_not_shared"] * 2
    assert time.slept == []


async def test_without_redis_a_member_has_a_token_of_its_own(platform: Platform) -> None:
    await has_a_token_of_its_own(platform, f"redis://127.0.0.1:{free_port()}/0")


async def test_a_redis_that_refuses_writes_keeps_nobody_from_a_token(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    redis_client.replicaof("127.0.0.1", str(free_port()))
    try:
        await has_a_token_of_its_own(platform, redis_url)
    finally:
        redis_client.replicaof("NO", "ONE")


async def test_a_full_redis_keeps_nobody_from_a_token(platform: Platform, redis_url: str, redis_client: Redis) -> None:
    redis_client.config_set("maxmemory", "1")
    try:
        await has_a_token_of_its_own(platform, redis_url)
    finally:
        redis_client.config_set("maxmemory", "0")


async def test_a_redis_that_hangs_is_asked_once_and_then_left_alone(platform: Platform) -> None:
    asked = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        with closing(writer), suppress(ConnectionError):
            await reader.read()  # Whatever comes, until they hang up.

    time = Time()
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0"
        async with impatient(platform, url, time) as member:
            for at, times in ((0.0, 1), (1.0, 1), (LEFT_ALONE - 0.1, 1), (LEFT_ALONE + 0.1, 2), (LEFT_ALONE + 1.0, 2)):
                time.now = 1_000.0 + at
                platform.good.clear()
                assert await member.get() == "p"
                assert asked == times, at


async def test_a_redis_that_hangs_while_the_token_is_fetched_keeps_nobody_from_it(
    platform: Platform, redis_url: str, redis_client: Redis
) -> None:
    process = int(redis_client.info()["process_id"])
    async with impatient(platform, redis_url) as member:
        platform.answers.clear()
        outcome = asyncio.create_task(member.get())
        await until_async(lambda: platform.waiting, what="the token request")
        os.kill(process, signal.SIGSTOP)
        try:
            platform.answers.set()
            assert await outcome == "p"
            platform.good.clear()
            assert await member.get() == "p"
        finally:
            os.kill(process, signal.SIGCONT)
    assert platform.waiting == 2


async def test_members_share_again_once_redis_is_back(platform: Platform, redis_url: str, redis_client: Redis) -> None:
    time = Time()
    async with fleet(2, platform, redis_url, clock=time.clock, sleep=time.sleep) as (first, second):
        redis_client.config_set("maxmemory", "1")
        try:
            assert await first.get() == "p"
        finally:
            redis_client.config_set("maxmemory", "0")
        time.now += LEFT_ALONE + 1
        platform.good.clear()
        assert await first.get() == "p"
        assert await second.get() == "p"
    assert platform.waiting == 2
