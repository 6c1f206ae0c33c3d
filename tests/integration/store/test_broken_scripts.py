"""Every command of every script refused in turn, and every script cut after each of its writes, as by a power cut.

Nothing is lost, nothing done is done again, what is erased is gone, lists agree with records, and keys expire.
"""

import asyncio
import time
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from credhook.store import SCHEMA, State
from credhook.store.errors import StoreRefusal
from support.store.accepting import everything
from support.store.breakable_store import BreakableStore
from support.store.failing_scripts import FORBIDDEN, OF_ANOTHER_TYPE, POWER_CUT, Sabotage
from support.store.script_cases import AFTERWARDS, CASES, PAUSE, nothing
from support.store.store_rules import EXPIRIES, LISTS, disagreements, pattern_of, wrong_expiries
from support.store.stored_events import of_events
from support.store.stores import EVENT, INDEX, SNAPSHOT
from support.virtual_time import in_own_time

pytestmark = pytest.mark.usefixtures("in_memory")

#: Commands that write nothing.
READS = {
    *(b"EXISTS", b"GET", b"HGET", b"HGETALL", b"HLEN", b"HMGET", b"MGET", b"PUBLISH", b"PUBSUB"),
    *(b"SMEMBERS", b"TIME", b"TTL", b"PTTL", b"TYPE", b"XRANGE", b"XREVRANGE", b"ZRANGE", b"ZRANGEBYSCORE", b"ZSCORE"),
}


#: A field in which a handler of an open event has saved progress, and the states of such an event.
SAVED, OPEN = "g:test.first", {b"accepted", b"waiting"}


async def run_case(redis: Redis, name: str, sabotage: Sabotage) -> BreakableStore:
    redis.flushall()
    store = BreakableStore(redis)
    script, prepare, run = CASES[name]
    await prepare(store)
    store.store.plans[script] = sabotage
    kept = [key.decode().removeprefix(SNAPSHOT) for key in redis.scan_iter(SNAPSHOT + "*")]
    saved = [key for key in redis.scan_iter(EVENT + "*") if redis.hexists(key, SAVED)]
    with suppress(ResponseError):
        await run(store)
    # Presented data goes after the marks of its handlers, or after the record.
    assert all(redis.exists(SNAPSHOT + one) or store.is_marked(one) or not redis.exists(EVENT + one) for one in kept)
    # No later claim gets the fence of an earlier one, which the lock or the record knows.
    for claim in store.held:
        state, fence = redis.hmget(EVENT + claim.event_id, "state", "fence")
        lock = redis.hget(INDEX.locks, claim.resource_id) or b""
        known = f"{claim.event_id} {claim.fence} ".encode() in lock or int(fence or 0) >= claim.fence
        assert known or state not in OPEN
    # Progress goes after the state.
    assert all(redis.hexists(key, SAVED) or redis.hget(key, "state") not in OPEN for key in saved)
    return store


async def survives(redis: Any, name: str, sabotage: Sabotage) -> None:
    """Promises 1, 4 and 10, whatever has happened to the script once."""
    began = time.monotonic()
    store = await run_case(redis, name, sabotage)
    repeat, expected = AFTERWARDS.get(name, (nothing, {"e1"}))
    if sabotage.error == POWER_CUT:
        assert_expiries(redis, began)
    await repeat(store)
    await store.recover()
    if sabotage.error == POWER_CUT:
        assert_expiries(redis, began)
        assert disagreements(redis) == []
    for key in redis.scan_iter(EVENT + "*"):
        webhook_id, record = key.decode().removeprefix(EVENT), redis.hgetall(key)
        state = record[b"state"].decode()
        assert redis.ttl(key) > 0, record
        assert SAVED.encode() not in record
        if state == State.QUARANTINED or (state == State.DEAD and name in {"settle as dead", "erase once"}):
            assert redis.zscore(LISTS[State(state)], webhook_id) is not None
            continue
        assert state == State.DONE, record
        assert webhook_id in store.handled
    if name == "erase":
        assert "doomed" not in everything(redis)
    assert expected <= {key.decode().removeprefix(EVENT) for key in redis.scan_iter(EVENT + "*")}
    if name != "claim":  # There RQ itself sees to its job.
        assert not [key for key in redis.scan_iter("rq:job:e*-*") if redis.ttl(key) < 0], everything(redis)


def assert_expiries(redis: Redis, began: float) -> None:
    assert wrong_expiries(redis, began=began, retention=3_600, pause=PAUSE) == []


#: After the first refusal, of Redis, a worker writes again. After the second, of the event, it does not.
#: The short form refuses every other command in the first way, and the rest in the second.
#: Of the places where the power can be cut, it tries one in nine, the last, and those beside a deletion.
REFUSALS = [
    pytest.param(FORBIDDEN, slice(0, None, 2), id="forbidden"),
    pytest.param(OF_ANOTHER_TYPE, slice(1, None, 2), id="of another type"),
    pytest.param(POWER_CUT, slice(0, None, 9), id="power cut"),
    *(
        pytest.param(error, slice(None), id=f"{name} anywhere", marks=pytest.mark.soak)
        for error, name in ((FORBIDDEN, "forbidden"), (OF_ANOTHER_TYPE, "of another type"), (POWER_CUT, "power cut"))
    ),
]


@pytest.mark.parametrize(("error", "tried"), REFUSALS)
@pytest.mark.parametrize("name", CASES)
def test_broken_script_loses_nothing_and_repeats_nothing(
    redis_client: Redis, name: str, error: str, tried: slice
) -> None:
    in_own_time(run_case(redis_client, name, Sabotage(0)))
    commands: Any = redis_client.lrange("test:commands", 0, -1)
    assert commands
    places = list(enumerate(commands, 1))
    if error == POWER_CUT:
        places = [place for place in places if place[1] not in READS]
        deletions = {b"DEL", b"HDEL", b"ZREM"}
        beside = [place for (_, command), place in pairwise(places) if command in deletions or place[1] == b"HDEL"]
        places = sorted({*places[tried], *beside, *places[-1:]})
    elif not name.startswith("erase"):
        places = places[tried]
    elif error == OF_ANOTHER_TYPE:  # A hash that turns into another type for one command is no store that exists.
        places = []
    for number, command in places:
        try:
            in_own_time(survives(redis_client, name, Sabotage(number, error)))
        except Exception as failure:
            failure.add_note(f"{name}: {error} at {number}, {command!r}")
            raise


async def test_every_key_expires_as_the_table_says(redis_client: Redis) -> None:
    seen = set[str]()
    for name, (_, prepare, run) in CASES.items():
        redis_client.flushall()
        began, store = time.monotonic(), BreakableStore(redis_client)
        repeat, _ = AFTERWARDS.get(name, (nothing, {}))
        for step in (prepare, run, repeat, BreakableStore.recover):
            await step(store)
            assert_expiries(redis_client, began)
            seen |= {pattern_of(key.decode()) for key in redis_client.scan_iter("credhook:*")}
        assert disagreements(redis_client) == []
    # Other tests look at these.
    assert seen | {"unfinished", "synced", "outside", "console", "console_jobs"} >= EXPIRIES.keys(), (
        EXPIRIES.keys() - seen
    )


@pytest.mark.parametrize("name", CASES)
def test_script_changes_no_event_of_another_schema(redis_client: Redis, name: str) -> None:
    async def refused() -> list[str]:
        store, (_, prepare, run) = BreakableStore(redis_client), CASES[name]
        await prepare(store)
        redis_client.set(INDEX.schema, SCHEMA + 1)
        before = of_events(redis_client)
        with suppress(ResponseError, StoreRefusal, TimeoutError):  # What Redis may take later is repeated.
            async with asyncio.timeout(60):
                await run(store)
        return before

    assert in_own_time(refused()) == of_events(redis_client)
