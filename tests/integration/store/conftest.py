"""A Redis that is emptied often."""

from collections.abc import Iterator

import pytest
from redis import Redis

from support.waiting import until


@pytest.fixture(scope="module")
def in_memory(redis_server: str) -> Iterator[None]:
    """A Redis without an append-only file, for tests that empty it a thousand times; it has one again after them."""
    with Redis.from_url(redis_server) as client:
        client.config_set("appendonly", "no")
        yield
        client.flushall()
        client.config_set("appendonly", "yes")
        # Until the file is written, Redis refuses to end, and would be waited for.
        until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], what="the append-only file")
