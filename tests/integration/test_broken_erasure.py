"""Every command of an erasure refused in turn: it can be asked for again."""

from contextlib import suppress

import pytest
from accepting import everything
from breakable_store import Ledger
from claiming import INDEX
from harness import COMPLETED
from redis import Redis
from redis.exceptions import ResponseError
from redis_keys import EVENT, HISTORY, job_id

from credhook.store import BLAMED

pytestmark = pytest.mark.usefixtures("in_memory")


async def failed_and_taken(ledger: Ledger) -> None:
    ledger.deliver(("doomed", COMPLETED, "r1"))
    await ledger.take()
    ledger.redis.hset(EVENT + "doomed", BLAMED + "a.bad", "c0ffee00")
    ledger.redis.zadd(INDEX.standing("c0ffee00"), {"doomed": 1})
    ledger.redis.rpush(HISTORY + "doomed", "1 {}")


async def test_an_erasure_that_was_broken_off_can_be_asked_for_again(redis_client: Redis) -> None:
    of_events = [INDEX.open, INDEX.open_by_received, INDEX.dead]
    keys = [INDEX.prefix, *of_events, INDEX.scheduled]
    arguments = [len(of_events), "doomed", job_id("doomed"), ""]
    redis_client.flushall()
    ledger = Ledger(redis_client)
    await failed_and_taken(ledger)
    ledger.erasing.look(keys, arguments)
    for number in range(1, redis_client.llen("test:commands") + 1):
        redis_client.flushall()
        await failed_and_taken(ledger)
        ledger.erasing.number = number
        with suppress(ResponseError):
            ledger.erasing(keys, arguments)
        ledger.erasing(keys, arguments)
        redis_client.delete("rq:job:" + job_id("doomed"))  # It lives for as long as the worker may notice.
        assert "doomed" not in everything(redis_client), number
