"""What the lock of a resource has to bear: lapses, deaths, scripts that break off, what others write. Redis is real."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from accepting import record
from claims import INDEX, accept, died, lapse, sweeper, take_one, worker
from failing_scripts import AsyncScript, Script
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError
from redis_keys import EVENT, job_id

from credhook.store import State
from credhook.worker.commands.events import erase
from credhook.worker.commands.search import EventSummary, Selection
from credhook.worker.queue import reclaim
from credhook.worker.queue.claim import Claim, Settlement
from credhook.worker.queue.claims import WRITE, Claims
from credhook.worker.queue.replay import Replay, Settled

DONE = Settlement(State.DONE)
#: Commands of a script at which it is broken off; none has more.
COMMANDS = range(1, 30)


def now_of(redis: Redis) -> int:
    return int(redis.time()[0]) * 1_000


async def test_two_events_of_a_resource_that_are_settled_together_let_the_next_begin(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("e1", "r"))
    claims = worker(async_redis)
    first = await take_one(claims)
    await accept(async_redis, ("e3", "r"), ("e4", "r"), ("e5", "r"))
    assert not (await claims.take(10, urgent=0)).claims
    lapse(redis_client, "e1")
    await accept(async_redis, ("e2", "r"))
    second = await take_one(claims)
    settled = await asyncio.gather(*(claims.settle(one, DONE, follow=True) for one in (first, second)))
    assert [ours for ours, _ in settled] == [True, True]
    assert [following.event_id for _, following in settled if following] == ["e3"]


async def test_a_lapsed_lease_without_a_lock_does_not_keep_its_event(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("e1", "r"))
    await take_one(worker(async_redis))
    redis_client.delete(INDEX.locks)
    lapse(redis_client, "e1")
    assert sweeper(redis_client).run() == 1


async def test_a_fence_that_was_lost_with_its_lock_is_not_given_out_again(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("e1", "r"))
    stalled = worker(async_redis, "stalled")
    await stalled.settle(await take_one(stalled), Settlement(State.ACCEPTED))
    lost = await take_one(stalled)
    redis_client.delete(INDEX.locks)
    lapse(redis_client, "e1")
    assert sweeper(redis_client).run() == 1
    assert (await take_one(worker(async_redis))).fence > lost.fence
    assert await stalled.renew([lost]) == [lost]
    assert await stalled.settle(lost, DONE) == (False, None)


async def test_an_event_that_came_twice_before_anybody_held_it_is_a_first_one(async_redis: AsyncRedis) -> None:
    await accept(async_redis, ("e1", "r"), ("e1", "r"))
    assert (await take_one(worker(async_redis))).first


async def test_a_death_counts_with_an_event_that_had_lapsed_and_whose_resource_goes_on(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("culprit", "r"), ("innocent", "q"))
    assert len((await worker(async_redis, "dies").take(10, urgent=0)).claims) == 2
    lapse(redis_client, "culprit")
    await accept(async_redis, ("next", "r"))
    other = worker(async_redis, "other")
    following = await take_one(other)
    assert following.event_id == "next"
    assert died(redis_client, "dies") == 2
    assert died(redis_client, "dies") == 0
    for one in ("culprit", "innocent"):
        kept = record(redis_client, one)
        assert (kept.get("deaths"), kept.get("killed"), kept["attempts"], kept.get("holder")) == ("1", None, "0", None)
    assert await other.renew([following]) == []


async def test_a_death_does_not_count_with_what_was_taken_again(async_redis: AsyncRedis, redis_client: Redis) -> None:
    await accept(async_redis, ("e1", "r"))
    await take_one(worker(async_redis, "dies"))
    lapse(redis_client, "e1")
    await accept(async_redis, ("e2", "r"))
    other = worker(async_redis, "other")
    await other.settle(await take_one(other), DONE)
    redis_client.rpush(INDEX.jobs, job_id("e1"))
    again = await take_one(other)
    assert (again.event_id, again.attempt) == ("e1", 2)
    assert died(redis_client, "dies") == 0
    assert await other.settle(again, DONE) == (True, None)
    assert not {"fence", "holder", "deaths", "killed"} & record(redis_client, "e1").keys()


async def test_what_killed_its_worker_comes_before_what_came_later(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("e1", "r"))
    await take_one(worker(async_redis, "dies"))
    assert reclaim.reclaim(redis_client, "dies", "1", queue="credhook", retention=3_600)
    await accept(async_redis, ("e2", "r"))
    assert not (await worker(async_redis, "busy").take(5, urgent=0)).claims
    idle = worker(async_redis, "idle")
    (first,) = (await idle.take(5, urgent=0, idle=True)).claims
    assert (first.event_id, first.killed, first.attempt) == ("e1", 1, 2)
    _, following = await idle.settle(first, DONE, follow=True)
    assert following is not None
    assert following.event_id == "e2"


async def test_a_lock_is_kept_for_the_dead_no_longer_than_their_lease(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    await accept(async_redis, ("e1", "r"), ("e2", "r"))
    await take_one(worker(async_redis, "dies"))
    lapse(redis_client, "e1")
    assert died(redis_client, "dies") == 1
    assert (await take_one(worker(async_redis))).event_id == "e2"


async def test_an_erasure_finds_the_locks_of_what_has_no_record_among_many(
    async_redis: AsyncRedis, redis_client: Redis
) -> None:
    strangers: dict[Any, Any] = {f"r{number}": f"x{number} 1 1 w" for number in range(20_000)}
    redis_client.hset(INDEX.locks, mapping=strangers | {"r": "gone 1 1 w"})
    erasure = erase.Erasure(redis_client, INDEX, Selection())
    absent = [EventSummary("gone", "", "", 0), *(EventSummary(f"absent{number}", "", "", 0) for number in range(199))]
    assert set(erasure(absent)) == {b"missing"}
    erasure.finish(absent)
    assert redis_client.hlen(INDEX.locks) == len(strangers)
    assert not redis_client.hexists(INDEX.locks, "r")


async def broken_settlement(
    async_redis: AsyncRedis, redis: Redis, settlement: Settlement, number: int
) -> tuple[Claims, Claim]:
    """A fifth attempt of e1, whose settlement is broken off at that command."""
    await accept(async_redis, ("e1", "r"))
    redis.hset(EVENT + "e1", mapping={"fence": 5, "attempts": 4})
    claims = worker(async_redis, "stalled")
    claim = await take_one(claims)
    script: Any = AsyncScript(redis, WRITE)
    script.number, script.error = number, "ERR broken"
    whole, claims._write = claims._write, script
    with suppress(RedisError):
        await claims.settle(claim, settlement)
    claims._write = whole
    return claims, claim


@pytest.mark.parametrize("number", COMMANDS)
async def test_a_replay_is_not_undone_by_a_settlement_that_was_broken_off(
    async_redis: AsyncRedis, redis_client: Redis, number: int
) -> None:
    dead = Settlement(State.DEAD, "no")
    stalled, claim = await broken_settlement(async_redis, redis_client, dead, number)
    if record(redis_client, "e1")["state"] != "dead":
        assert number < 10
        return
    Replay(redis_client, queue="credhook")([Settled("e1", State.DEAD)])
    replayed = record(redis_client, "e1")
    assert not redis_client.exists(INDEX.locks)
    redis_client.lrem(INDEX.jobs, 0, job_id("e1"))
    await accept(async_redis, ("e2", "r"))
    other = worker(async_redis, "other")
    lapse(redis_client, "e1")
    await other.settle(await take_one(other), DONE)
    assert int(record(redis_client, "e1")["fence"]) >= int(replayed["fence"])
    assert await stalled.settle(claim, dead) == (False, None)
    redis_client.rpush(INDEX.jobs, job_id("e1"))
    again = await take_one(other)
    assert (again.event_id, again.attempt) == ("e1", 1)


@pytest.mark.parametrize("number", COMMANDS)
async def test_neither_does_one_spend_an_attempt_that_it_had_given_back(
    async_redis: AsyncRedis, redis_client: Redis, number: int
) -> None:
    unspent = Settlement(State.WAITING, "no", wait=0.0, spend=False)
    await broken_settlement(async_redis, redis_client, unspent, number)
    before = record(redis_client, "e1")
    if before["state"] != "waiting":
        assert number < 10
        return
    redis_client.delete(INDEX.scheduled)
    await accept(async_redis, ("e2", "r"))
    lapse(redis_client, "e1")
    assert (await take_one(worker(async_redis, "other"))).event_id == "e2"
    after = record(redis_client, "e1")
    assert (after["fence"], after["attempts"]) == (before["fence"], before["attempts"])


@pytest.mark.parametrize("number", COMMANDS)
async def test_an_erasure_that_was_broken_off_beside_a_worker_leaves_the_event_to_be_put_back(
    async_redis: AsyncRedis, redis_client: Redis, number: int
) -> None:
    await accept(async_redis, ("e1", "r"))
    claims = worker(async_redis)
    claim = await take_one(claims)
    erasure = erase.Erasure(redis_client, INDEX, Selection())
    script: Any = Script(redis_client, erase._ERASE)
    script.number, script.error = number, "ERR broken"
    erasure._script = script
    with suppress(RedisError):
        erasure([EventSummary("e1", "", "", 0)])
    settled, _ = await claims.settle(claim, DONE)
    if settled or not redis_client.exists(EVENT + "e1") or redis_client.zscore(INDEX.open, "e1") is None:
        return
    lapse(redis_client, "e1")
    assert sweeper(redis_client).run() == 1
    assert (await take_one(claims)).event_id == "e1"
