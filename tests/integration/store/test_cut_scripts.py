"""Scripts that a power cut ends, and that then run once more: the second run does what the first has left."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from credhook.store import State
from credhook.store.store import Script
from credhook.worker.queue.claims import Settlement
from credhook.worker.queue.leases import note_death
from support.store.breakable_store import BreakableStore
from support.store.failing_scripts import POWER_CUT, Sabotage
from support.store.stores import EVENT, INDEX
from support.worker.claiming import COMPLETED

pytestmark = pytest.mark.usefixtures("in_memory")

HANDED_BACK = Settlement(State.ACCEPTED)


def stores(redis: Redis, script: Script) -> Iterator[BreakableStore]:
    """Yield stores with two events each. In each of them the script breaks off at a later command."""
    for number in range(1, 50):
        redis.flushall()
        store = BreakableStore(redis)
        store.deliver(("e1", COMPLETED, "r1"), ("e2", COMPLETED, "r2"))
        store.store.plans[script] = Sabotage(number, POWER_CUT)
        yield store
        assert not store.store.plans, f"{script} was not run"


async def twice(run: Callable[[], Awaitable[object]]) -> None:
    with suppress(ResponseError):
        await run()
    await run()


async def test_repeated_record_names_the_pending_handlers(redis_client: Redis) -> None:
    for store in stores(redis_client, "write"):
        claim, _ = await store.take()
        await twice(lambda claim=claim, store=store: store.claims.record(claim, "test.first", "done", ["test.second"]))  # type: ignore[misc]
        assert redis_client.hmget(EVENT + "e1", "h:test.first", "p:test.second") == [b"done", b"0 0"]


async def test_repeated_replay_names_the_pending_handlers(redis_client: Redis) -> None:
    for store in stores(redis_client, "replay"):
        claim, _ = await store.take()
        await store.handle(claim)
        with suppress(ResponseError):
            store.replay("e1", "done")
        store.replay("e1", "done")
        assert redis_client.hmget(EVENT + "e1", "state", "h:test.first", "p:test.first") == [b"accepted", None, b"0 0"]


async def test_repeated_settlement_frees_the_event(redis_client: Redis) -> None:
    for store in stores(redis_client, "write"):
        claim, _ = await store.take()
        await twice(lambda claim=claim, store=store: store.claims.settle(claim, HANDED_BACK))  # type: ignore[misc]
        assert not redis_client.hexists(INDEX.locks, "r1")
        assert redis_client.zscore(INDEX.leases, "e1") is None
        assert [retaken.event_id for retaken in await store.take()] == ["e1"]


async def test_death_after_a_cut_settlement_leaves_the_record_readable(redis_client: Redis) -> None:
    for store in stores(redis_client, "write"):
        claim, _ = await store.take()
        with suppress(ResponseError):
            await store.claims.settle(claim, HANDED_BACK)
        note_death(store.store, "w", "own")
        store.pass_time()
        store.sweeper.run()
        assert redis_client.hget(EVENT + "e1", "state") == b"accepted"
