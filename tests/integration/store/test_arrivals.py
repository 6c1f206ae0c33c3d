"""The counts of deliveries by minute and hour, as the receiver's script and the sweeper keep them."""

from typing import Any

from redis import Redis

from credhook.events import EVENT_TYPES
from credhook.store.arrivals import DAY, HOUR, Arrivals, Hour, minute_of, roll_up
from support.redis.redis_server import configured
from support.store.stores import INDEX, last_entry, run_accept, store_on

COMPLETED = EVENT_TYPES[0]


def arrivals(redis: Redis) -> Arrivals:
    reply: Any = redis.hgetall(INDEX.arrivals)
    return Arrivals.read(reply)


def test_each_delivery_counts_in_its_minute_and_a_backfill_does_not(redis_client: Redis) -> None:
    store = store_on(redis_client)
    before = minute_of(store.clock())
    run_accept(store, ("m1", COMPLETED, "r1"), ("m2", COMPLETED, "r2"), ("m3", "of.tomorrow", "r3"))
    run_accept(store, ("m1", COMPLETED, "r1"))
    run_accept(store, ("b1", COMPLETED, "r9"), since=last_entry(store))
    came = arrivals(redis_client)
    assert sum(came.minutes.values()) == 4
    assert came.minutes.keys() <= {before, before + 1}
    assert 14 * 86_400 < redis_client.ttl(INDEX.arrivals) <= 15 * 86_400


def test_full_redis_accepts_duplicates_that_it_cannot_count(redis_client: Redis) -> None:
    store = store_on(redis_client)
    run_accept(store, ("m1", COMPLETED, "r1"))
    redis_client.delete(INDEX.arrivals)
    with configured(redis_client, "maxmemory", "1"):
        assert run_accept(store, ("m1", COMPLETED, "r1")) == [b"duplicate"]
    assert not redis_client.exists(INDEX.arrivals)


def test_minutes_become_hours_after_two_days_and_hours_go_after_two_weeks(redis_client: Redis) -> None:
    now = 500_000 * HOUR + 20
    old, older = now - 2 * DAY - HOUR, now - 14 * DAY - HOUR
    counts: dict[Any, Any] = {f"m{now}": 3, f"m{now - 2 * DAY}": 5, f"m{old}": 2, f"m{old + 7}": 4}
    counts[f"m{now - 2 * DAY - 9}"] = 1  # The rest of its hour is younger than two days.
    hours: dict[Any, Any] = {f"h{older // HOUR}": "9 9", f"h{older // HOUR + 1}": "8 7"}
    redis_client.hset(INDEX.arrivals, mapping={**counts, **hours})
    before = arrivals(redis_client).hours
    for _ in range(2):
        roll_up(store_on(redis_client), now * 60_000)
        came = arrivals(redis_client)
        assert came.minutes == {now: 3, now - 2 * DAY: 5, now - 2 * DAY - 9: 1}
        assert came.hours == {hour: sums for hour, sums in before.items() if hour != older // HOUR}
        assert came.hours[old // HOUR] == Hour(6, 2)


def test_counts_of_two_busy_weeks_stay_small(redis_client: Redis) -> None:
    now = 500_000 * HOUR
    for start in range(now - 15 * DAY, now, DAY):
        redis_client.hset(INDEX.arrivals, mapping={f"m{start + minute}": 60_000 for minute in range(DAY)})
        roll_up(store_on(redis_client), (start + DAY) * 60_000)
    assert redis_client.hlen(INDEX.arrivals) <= 2 * DAY + HOUR + 14 * 24
    assert (redis_client.memory_usage(INDEX.arrivals, samples=0) or 0) < 400_000
