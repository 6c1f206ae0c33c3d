"""The Redis of deploy/compose.yaml, run as its container runs it, with a server of this machine."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from credhook.sandbox.local.environment import free_port
from credhook.store.health import ask, examine
from support.project.compose import PASSWORD, USER, store
from support.store.stores import store_on
from support.waiting import until


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Its process's id, and its port."""
    folder, port = tmp_path_factory.mktemp("shipped"), free_port()
    with store(folder, port) as process:
        until(process.is_healthy, what="the Redis")
        yield process.process.pid, port


async def test_shipped_redis_passes_every_check(shipped: tuple[int, int]) -> None:
    async with AsyncRedis(port=shipped[1], username=USER, password=PASSWORD) as redis:
        found = await examine(partial(ask, store_on(redis)), durability="strict")
    assert {check.name: check.verdict for check in found if not check.passed} == {}


def test_shipped_redis_has_no_default_user_and_shows_no_password(
    shipped: tuple[int, int],
) -> None:
    process, port = shipped
    with Redis(port=port, retry=Retry(NoBackoff(), 0)) as stranger, pytest.raises(AuthenticationError):
        stranger.ping()
    with Redis(port=port, password=PASSWORD) as default, pytest.raises(AuthenticationError):
        default.ping()
    arguments = Path(f"/proc/{process}/cmdline").read_bytes()
    assert b"redis-server" in arguments  # The shell has made room for it, so that it hears SIGTERM.
    assert PASSWORD.encode() not in arguments


def test_the_redis_of_sandbox_tests_and_bench_is_configured_like_it(
    shipped: tuple[int, int], redis_client: Redis
) -> None:
    with Redis(port=shipped[1], username=USER, password=PASSWORD) as client:
        for name in ("appendonly", "appendfsync", "save", "maxmemory-policy", "activerehashing"):
            assert client.config_get(name) == redis_client.config_get(name)
