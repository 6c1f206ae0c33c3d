"""The counts by minute, as the scripts and the sweeper write them."""

import asyncio
from typing import Any

from redis import Redis

from credhook.store import FETCH, State
from credhook.store.traffic import DAY, HOUR, Column, hour_key, minute_of, read_columns
from credhook.worker.queue.claims import Settlement
from credhook.worker.queue.failure import WORKER_DIED, Failure
from support.redis.redis_server import configured
from support.store.stores import INDEX, run_accept, store_on
from support.worker.claiming import COMPLETED, URGENT, EventQueue

FAILED, GAVE_UP = Failure("a.bad", "ValueError"), Failure("a.worse", "GiveUp")


def counts(redis: Redis) -> dict[str, int]:
    """The sums of all minutes."""
    sums: dict[str, int] = {}
    for key in redis.scan_iter(INDEX.traffic + "*"):
        of_hour: Any = redis.hgetall(key)
        for field, count in of_hour.items():
            name = field.decode().partition(" ")[2]
            sums[name] = sums.get(name, 0) + int(count)
    return sums


async def test_a_group_of_settlements_counts_by_type_and_handler(queue: EventQueue) -> None:
    await queue.accept("e1", "e2")
    await queue.accept("u1", kind=URGENT)
    claims, worker = await queue.take(), queue.worker()
    done = Settlement(State.DONE, records={"a.good": "done 12", "a.skipped": "skipped"})
    await asyncio.gather(*(worker.settle(claim, done) for claim in claims))
    arrived = {f"arrived {COMPLETED}": 2, f"arrived {URGENT}": 1}
    ended = {f"done {COMPLETED}": 2, f"done {URGENT}": 1, "done h:a.good": 3}
    assert counts(queue.redis) == arrived | ended


async def test_failed_attempts_and_given_up_events_count_once_each(queue: EventQueue) -> None:
    await queue.accept("e1", "e2", "e3")
    waiting, dead, fetching = await queue.take()
    again: Any = {"schedules": {"a.bad": (1, 5.0, False), "a.worse": (1, None, False)}}
    records = {"a.worse": "dead: GiveUp"}
    worker = queue.worker()
    await worker.settle(waiting, Settlement(State.WAITING, records=records, failures=(FAILED, GAVE_UP), **again))
    await worker.record(dead, "a.worse", "dead: GiveUp", failure=GAVE_UP)
    await worker.settle(dead, Settlement(State.DEAD, failures=(GAVE_UP,)))
    failures = Failure(FETCH, "Unavailable"), WORKER_DIED
    await worker.settle(fetching, Settlement(State.WAITING, failures=failures, schedules={FETCH: (1, 5.0, False)}))
    assert counts(queue.redis) == {
        f"arrived {COMPLETED}": 3,
        f"failed {COMPLETED}": 2,
        f"given_up {COMPLETED}": 1,
        "failed h:a.bad": 1,
        "failed h:fetch": 1,
        "given_up h:a.worse": 2,
    }


async def test_postponed_event_did_not_fail(queue: EventQueue) -> None:
    await queue.accept("e1")
    postponed = Settlement(State.WAITING, wait=60.0, chosen=True, schedules={"a.later": (1, 60.0, True)})
    await queue.worker().settle(await queue.take_one(), postponed)
    assert counts(queue.redis) == {f"arrived {COMPLETED}": 1}


async def test_settlement_that_is_repeated_counts_once(queue: EventQueue) -> None:
    await queue.accept("e1")
    claim, done = await queue.take_one(), Settlement(State.DONE, records={"a.good": "done 1"})
    for _ in range(2):
        await queue.worker().settle(claim, done)
    assert counts(queue.redis) == {f"arrived {COMPLETED}": 1, f"done {COMPLETED}": 1, "done h:a.good": 1}


def test_unknown_types_share_one_count(redis_client: Redis) -> None:
    run_accept(store_on(redis_client), *((f"m{number}", f"type.{number}", f"r{number}") for number in range(5)))
    assert counts(redis_client) == {"arrived unknown": 5}


def test_counts_stand_in_their_minute_and_last_for_two_days(redis_client: Redis) -> None:
    store = store_on(redis_client)
    before = minute_of(store.clock())
    run_accept(store, ("m1", COMPLETED, "r1"))
    (key,) = redis_client.scan_iter(INDEX.traffic + "*")
    (name,) = redis_client.hkeys(key)
    hour, minute = int(key.rpartition(b":")[2]), int(name.split()[0])
    assert HOUR * hour + minute in {before, before + 1}
    assert 48 * 3_600 < redis_client.ttl(key) <= 49 * 3_600


async def test_sweeper_notes_the_open_events_and_the_age_of_the_oldest(queue: EventQueue) -> None:
    await queue.accept("e1", "e2")
    queue.redis.zadd(INDEX.open, {"e1": int(queue.redis.time()[0] - 90) * 1_000})
    queue.sweeper().run()
    assert counts(queue.redis) == {f"arrived {COMPLETED}": 2, "open": 2, "oldest": 90}
    (key,) = queue.redis.scan_iter(INDEX.traffic + "*")
    assert queue.redis.ttl(key) > 48 * 3_600


async def test_full_redis_settles_what_it_cannot_count(queue: EventQueue) -> None:
    await queue.accept("e1")
    claim = await queue.take_one()
    with configured(queue.redis, "maxmemory", "1"):
        assert (await queue.worker().settle(claim, Settlement(State.DONE)))[0]


NOW = 500_000 * HOUR + 20  # In minutes.


def columns(redis: Redis, span: int, step: int, name: str = "") -> dict[int, Column]:
    """The columns of a graph in which something happened."""
    (graph,) = read_columns(store_on(redis), NOW * 60_000, [(span, step)], name=name)
    assert len(graph) == span // step
    assert graph[-1].start <= NOW < graph[-1].start + step
    return {column.start: column for column in graph if any(column[1:])}


def write(redis: Redis, minute: int, **counts: int) -> None:
    hour, of_hour = divmod(minute, HOUR)
    fields: dict[Any, Any] = {f"{of_hour} {what.replace('__', ' ')}": count for what, count in counts.items()}
    redis.hset(hour_key(INDEX, hour), mapping=fields)


def test_columns_sum_the_counts_of_their_minutes_and_keep_the_highest_sample(redis_client: Redis) -> None:
    write(redis_client, NOW, arrived__t=3, done__t=2, arrived__u=1, open=4, oldest=9)
    write(redis_client, NOW - 7, failed__t=1, given_up__t=2, open=6, oldest=3)
    write(redis_client, NOW - HOUR, arrived__t=50)
    assert columns(redis_client, HOUR, 1) == {
        NOW: Column(NOW, 4, 2, 0, 0, 4, 9),
        NOW - 7: Column(NOW - 7, 0, 0, 1, 2, 6, 3),
    }
    assert columns(redis_client, HOUR, 30) == {NOW - 20: Column(NOW - 20, 4, 2, 1, 2, 6, 9)}
    assert sum(column.arrived for column in columns(redis_client, DAY, 30).values()) == 54


def test_columns_of_a_type_or_a_handler_have_no_others_counts(redis_client: Redis) -> None:
    fields: dict[Any, Any] = {"20 done t": 2, "20 done u": 3, "20 done h:a.b": 5, "20 open": 7, "20 oldest": 7}
    redis_client.hset(hour_key(INDEX, NOW // HOUR), mapping=fields)
    assert columns(redis_client, HOUR, 1, name="t") == {NOW: Column(NOW, done=2)}
    assert columns(redis_client, HOUR, 1, name="h:a.b") == {NOW: Column(NOW, done=5)}
    assert columns(redis_client, HOUR, 1)[NOW].done == 5


def test_columns_leave_out_what_others_have_written(redis_client: Redis) -> None:
    fields: dict[Any, Any] = {"x": 1, "20": 1, "20 other t": 1, "-1 done t": 1, "20 done t": "many", "19 done t": 1}
    redis_client.hset(hour_key(INDEX, NOW // HOUR), mapping=fields)
    assert columns(redis_client, HOUR, 1) == {NOW - 1: Column(NOW - 1, done=1)}
