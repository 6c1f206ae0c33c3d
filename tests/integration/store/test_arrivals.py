"""The deliveries of each hour, as the receiver's script counts them and the sweeper sums them up."""

from redis import Redis

from credhook.events import EVENT_TYPES
from credhook.store.arrivals import Arrivals, Hour, sum_up
from credhook.store.traffic import HOUR, minute_of
from support.redis.redis_server import configured
from support.store.stores import INDEX, last_entry, run_accept, store_on

COMPLETED = EVENT_TYPES[0]


def arrivals(redis: Redis) -> Arrivals:
    return Arrivals.read(store_on(redis).run("deliveries", []))


def plant(redis: Redis, minute: int, deliveries: int) -> None:
    hour, of_hour = divmod(minute, HOUR)
    redis.hset(f"{INDEX.traffic}{hour}", f"{of_hour} arrived {COMPLETED}", deliveries)


def test_each_delivery_counts_and_a_backfill_does_not(redis_client: Redis) -> None:
    store = store_on(redis_client)
    before = minute_of(store.clock())
    run_accept(store, ("m1", COMPLETED, "r1"), ("m2", COMPLETED, "r2"), ("m3", "of.tomorrow", "r3"))
    run_accept(store, ("m1", COMPLETED, "r1"))
    run_accept(store, ("b1", COMPLETED, "r9"), since=last_entry(store))
    came = arrivals(redis_client)
    assert sum(hour.deliveries for hour in came.hours.values()) == 4
    assert came.last in {before, before + 1}


def test_full_redis_accepts_duplicates_that_it_cannot_count(redis_client: Redis) -> None:
    store = store_on(redis_client)
    run_accept(store, ("m1", COMPLETED, "r1"))
    redis_client.delete(*redis_client.scan_iter(INDEX.traffic + "*"))
    with configured(redis_client, "maxmemory", "1"):
        assert run_accept(store, ("m1", COMPLETED, "r1")) == [b"duplicate"]
    assert not list(redis_client.scan_iter(INDEX.traffic + "*"))


def test_sums_hold_what_the_minutes_held(redis_client: Redis) -> None:
    store = store_on(redis_client)
    hour = minute_of(store.clock()) // HOUR
    plant(redis_client, HOUR * hour, 7)
    plant(redis_client, HOUR * (hour - 1) + 5, 3)
    plant(redis_client, HOUR * (hour - 47) + 9, 2)
    plant(redis_client, HOUR * (hour - 47) + 50, 4)
    redis_client.hset(INDEX.arrivals, f"h{hour - 100}", f"9 8 {HOUR * (hour - 100) + 59}")
    before = arrivals(redis_client)
    assert before.hours[hour - 47] == Hour(6, 2, HOUR * (hour - 47) + 50)
    for _ in range(2):
        sum_up(store, store.clock())
        redis_client.delete(f"{INDEX.traffic}{hour - 47}")
        after = arrivals(redis_client)
        assert {at: sums for at, sums in after.hours.items() if sums.deliveries} == before.hours


def test_sums_go_after_two_weeks_and_after_the_clock_was_set_back(redis_client: Redis) -> None:
    store = store_on(redis_client)
    hour = minute_of(store.clock()) // HOUR
    for other in (hour - 400, hour + 50):
        redis_client.hset(INDEX.arrivals, f"h{other}", f"9 8 {HOUR * other}")
    plant(redis_client, HOUR * (hour - 1), 3)
    sum_up(store, store.clock())
    came = arrivals(redis_client)
    assert (min(came.hours), max(came.hours), came.last) == (hour - 14 * 24, hour - 1, HOUR * (hour - 1))
    assert 14 * 86_400 < redis_client.ttl(INDEX.arrivals) <= 15 * 86_400


def test_foreign_fields_are_not_counted(redis_client: Redis) -> None:
    hour = minute_of(store_on(redis_client).clock()) // HOUR
    redis_client.hset(f"{INDEX.traffic}{hour}", mapping={"x": "y", "1 arrived z": "many", "2 arrived z": 1})
    redis_client.set(f"{INDEX.traffic}{hour - 1}", "of another type")
    assert arrivals(redis_client).hours[hour].deliveries == 1
