"""Every command of an erasure refused in turn: it can be asked for again."""

from contextlib import suppress

import pytest
from accepting import everything
from breakable_store import BreakableStore
from claiming import INDEX
from failing_scripts import Sabotage
from harness import COMPLETED
from redis import Redis
from redis.exceptions import ResponseError
from redis_keys import EVENT, HISTORY, job_id

from credhook.store import BLAMED

pytestmark = pytest.mark.usefixtures("in_memory")


async def failed_and_taken(store: BreakableStore) -> None:
    store.deliver(("doomed", COMPLETED, "r1"))
    await store.take()
    store.redis.hset(EVENT + "doomed", BLAMED + "a.bad", "c0ffee00")
    store.redis.zadd(INDEX.standing("c0ffee00"), {"doomed": 1})
    store.redis.rpush(HISTORY + "doomed", "1 {}")


async def test_an_erasure_that_was_broken_off_can_be_asked_for_again(redis_client: Redis) -> None:
    of_events = [INDEX.open, INDEX.open_by_received, INDEX.dead]
    keys = [INDEX.prefix, *of_events, INDEX.scheduled]
    arguments = [len(of_events), "doomed", job_id("doomed"), ""]
    redis_client.flushall()
    store = BreakableStore(redis_client)
    await failed_and_taken(store)
    store.store.plans["erase"] = Sabotage(0)
    store.store.run("erase", arguments, keys=keys)
    for number in range(1, redis_client.llen("test:commands") + 1):
        redis_client.flushall()
        await failed_and_taken(store)
        store.store.plans["erase"] = Sabotage(number)
        with suppress(ResponseError):
            store.store.run("erase", arguments, keys=keys)
        store.store.run("erase", arguments, keys=keys)
        redis_client.delete("rq:job:" + job_id("doomed"))  # It lives for as long as the worker may notice.
        assert "doomed" not in everything(redis_client), number
