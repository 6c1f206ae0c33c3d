"""No cancellation is lost while Redis is awaited, whatever is asked of it and however it is reached.

redis-py sends through `asyncio.wait_for`, which on Python 3.11 drops a cancellation that meets a finished send. Each
kind of question is cancelled after no turn of the event loop, after one, after two, until it is through.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from credhook.sandbox.local.environment import local_redis
from credhook.store.connection import open_redis
from support.cancellation import TurningLoop, cancelled_after, on_turning_loop
from support.redis.redis_addresses import Reached, over_a_unix_socket, over_tcp, over_tls, through_sentinel

#: More turns of the event loop than any of the questions takes.
MOST_TURNS = 500

Ask = Callable[[str, Redis], Coroutine[Any, Any, None]]


async def command(_: str, redis: Redis) -> None:
    await redis.get("key")


async def pipeline(_: str, redis: Redis) -> None:
    async with redis.pipeline(transaction=False) as commands:
        commands.get("key")
        commands.get("key")
        await commands.execute()


async def transaction(_: str, redis: Redis) -> None:
    async with redis.pipeline() as commands:
        await commands.watch("key")
        commands.multi()  # type: ignore[no-untyped-call]  # redis-py's gap
        commands.get("key")
        await commands.execute()


async def subscription(_: str, redis: Redis) -> None:
    async with redis.pubsub() as channel:
        await channel.subscribe("channel")
        await channel.get_message(timeout=1)


async def connection(url: str, _: Redis) -> None:
    fresh = open_redis(url)
    try:
        await fresh.get("key")
    finally:
        await asyncio.shield(fresh.aclose())  # Cancelled before it has begun, it would leave the connection open.


async def losses(ask: Ask, url: str, loop: TurningLoop) -> list[int]:
    """The numbers of turns after which a cancellation was lost. After each, the client answers what it is asked."""
    redis, lost = open_redis(url), []
    await reached(redis)
    for turns in range(MOST_TURNS):
        task, was_asked = await cancelled_after(turns, ask(url, redis), loop)
        if not was_asked:
            break
        if not task.cancelled():
            lost.append(turns)
        assert await redis.echo(str(turns)) == str(turns).encode()
    else:
        raise AssertionError("it did not come to an end")
    await redis.aclose()
    assert turns > 0
    return lost


async def reached(redis: Redis) -> None:
    """Return once Redis can be reached: a Sentinel takes a moment to know its master."""
    async with asyncio.timeout(60):
        while True:
            with suppress(RedisError):
                await redis.ping()
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("ask", [command, pipeline, transaction, subscription, connection])
def test_a_question_can_be_cancelled_after_any_turn(redis_url: str, ask: Ask) -> None:
    assert on_turning_loop(lambda loop: losses(ask, redis_url, loop)) == []


@pytest.mark.parametrize("reach", [over_tcp, over_a_unix_socket, over_tls, through_sentinel])
def test_so_can_every_kind_of_connection(
    reach: Callable[[Path, str], AbstractContextManager[Reached]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--unixsocket", str(tmp_path / "redis.sock"))
    with local_redis(tmp_path, options=options) as behind, reach(tmp_path, behind) as (url, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert on_turning_loop(lambda loop: losses(connection, url, loop)) == []


async def test_task_that_swallowed_a_cancellation_may_still_ask(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        assert await redis.echo("cleaning up") == b"cleaning up"


def test_a_time_out_around_a_question_is_one_whichever_turn_it_meets(redis_url: str) -> None:
    async def ask(redis: Redis, limit: asyncio.Timeout) -> bool:
        try:
            async with limit:
                await redis.get("key")
        except TimeoutError:
            return False
        return True

    async def work(loop: TurningLoop) -> int:
        async with open_redis(redis_url) as redis:
            await redis.ping()
            for turns in range(1, MOST_TURNS):
                limit = asyncio.timeout(None)
                task = loop.create_task(ask(redis, limit))
                loop.after(turns, lambda limit=limit, task=task: task.done() or limit.reschedule(0))  # type: ignore[misc]
                assert await task is not limit.expired(), turns
                if not limit.expired():
                    break
            return turns

    assert 1 < on_turning_loop(work) < MOST_TURNS - 1
