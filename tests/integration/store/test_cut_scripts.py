"""Scripts that a power cut ends, and that then run once more: the second run does what the first has left."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from credhook.store.store import Script
from support.store.breakable_store import BreakableStore
from support.store.failing_scripts import POWER_CUT, Sabotage
from support.store.stores import EVENT
from support.worker.claiming import COMPLETED

pytestmark = pytest.mark.usefixtures("in_memory")


def stores(redis: Redis, script: Script) -> Iterator[BreakableStore]:
    """Yield stores with two events each. In each of them the script breaks off at a later command."""
    for number in range(1, 50):
        redis.flushall()
        store = BreakableStore(redis)
        store.deliver(("e1", COMPLETED, "r1"), ("e2", COMPLETED, "r2"))
        store.store.plans[script] = Sabotage(number, POWER_CUT)
        yield store
        assert not store.store.plans, f"{script} was not run"


async def test_repeated_record_names_the_pending_handlers(redis_client: Redis) -> None:
    for store in stores(redis_client, "write"):
        claim, _ = await store.take()
        with suppress(ResponseError):
            await store.claims.record(claim, "test.first", "done", ["test.second"])
        await store.claims.record(claim, "test.first", "done", ["test.second"])
        assert redis_client.hmget(EVENT + "e1", "h:test.first", "p:test.second") == [b"done", b"0 0"]


async def test_repeated_replay_names_the_pending_handlers(redis_client: Redis) -> None:
    for store in stores(redis_client, "replay"):
        claim, _ = await store.take()
        await store.handle(claim)
        with suppress(ResponseError):
            store.replay("e1", "done")
        store.replay("e1", "done")
        assert redis_client.hmget(EVENT + "e1", "state", "h:test.first", "p:test.first") == [b"accepted", None, b"0 0"]
