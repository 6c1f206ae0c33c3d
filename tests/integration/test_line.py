"""The connection that deliveries wait for: answers, refusals, silence, and its end."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio
from redis import Redis
from redis.exceptions import ConnectionError, NoScriptError, ResponseError, TimeoutError  # noqa: A004  Redis's own.
from waiting import until_async

from credhook.receiver.inbox.line import Line, packed


@pytest.fixture
async def line(async_redis: redis.asyncio.Redis) -> AsyncIterator[Line]:
    line = await Line.open(async_redis, patience=60)
    yield line
    line.close()


async def test_one_question_or_several_at_once_and_the_line_goes_on(line: Line) -> None:
    assert await line.answer(packed("PING")) == [b"PONG"]
    assert await line.answer(packed("SET", "a", "b" * 200_000) + packed("STRLEN", "a"), replies=2) == [b"OK", 200_000]
    assert line.is_open


async def test_a_refusal_is_an_error_once_all_replies_are_there(line: Line) -> None:
    with pytest.raises(ResponseError, match="unknown command"):
        await line.answer(packed("NONSENSE") + packed("PING"), replies=2)
    with pytest.raises(NoScriptError):
        await line.answer(packed("EVALSHA", "0" * 40, 0))
    assert await line.answer(packed("PING")) == [b"PONG"]


async def test_a_master_that_has_become_a_replica_ends_the_line(line: Line, redis_client: Redis) -> None:
    """Another connection may lead to the new master, as it does through Sentinels."""
    redis_client.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(ConnectionError, match="READONLY"):
            await line.answer(packed("SET", "a", "b"))
    finally:
        redis_client.replicaof("NO", "ONE")
    assert not line.is_open


async def test_silence_ends_the_line(async_redis: redis.asyncio.Redis, redis_client: Redis) -> None:
    line = await Line.open(async_redis, patience=0.1)
    redis_client.client_pause(3_000)
    with pytest.raises(TimeoutError):
        await line.answer(packed("PING"))
    assert not line.is_open


async def test_a_line_that_is_cut_tells_whoever_waits(line: Line, redis_client: Redis) -> None:
    told: list[list[Any] | Exception] = []
    line.ask(packed("BLPOP", "nothing", 0), told.append)
    await until_async(lambda: redis_client.info("clients")["blocked_clients"] == 1)
    redis_client.client_kill_filter(_type="normal", skipme=True)
    await until_async(lambda: told)
    assert isinstance(told[0], ConnectionError)
    assert len(told) == 1
    assert not line.is_open


async def test_what_nobody_waits_for_any_more_is_no_trouble(line: Line) -> None:
    told: list[list[Any] | Exception] = []
    line.ask(packed("BLPOP", "nothing", 0), told.append)
    line.close()
    await until_async(lambda: told)
    assert isinstance(told[0], ConnectionError)
