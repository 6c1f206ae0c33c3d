"""When the leader looks through the whole ledger for what an older version has accepted, on a real Redis."""

import time
from typing import Any

import pytest
from accepting import accept
from harness import COMPLETED
from planting import INDEX
from redis import Redis
from redis_keys import EVENT, LATE, LISTED, ROUNDS, WHOLE

from credhook.store import bucket, place
from credhook.worker.queue.rounds import read_rounds
from credhook.worker.queue.sweeper import Sweeper

PLACE = place(COMPLETED, bucket("r1"))


def reconcile(redis: Redis) -> None:
    Sweeper(redis, queue="credhook", name="n", interval=1, retention=3_600).run()


@pytest.mark.parametrize(
    ("first", "whole", "listed"), [(40, 29, False), (40, 31, True), (1, 1, True), (0, 0, False), (None, 2, True)]
)
def test_it_looks_for_what_is_not_listed_a_day_after_the_first_time_and_then_every_thirty(
    redis_client: Redis, redis_url: str, first: float | None, whole: float, *, listed: bool
) -> None:
    accept(redis_url, "m1", COMPLETED, "r1")
    redis_client.delete(LISTED + PLACE, INDEX.opened, WHOLE)
    redis_client.delete(INDEX.open)  # What is open is listed at every round.
    redis_client.zadd(LATE + PLACE, {"gone": int(time.time() * 1_000)})
    days = {"first": first, "whole": whole, "pruned": 1}
    noted: dict[Any, Any] = {
        name: int((time.time() - 86_400 * ago) * 1_000) for name, ago in days.items() if ago is not None
    }
    redis_client.set(WHOLE, noted.pop("whole"))
    redis_client.hset(ROUNDS, mapping=noted)
    for _ in range(3):
        reconcile(redis_client)
    assert redis_client.zrange(LATE + PLACE, 0, -1) == ([b"m1"] if listed else [])  # That is pruned every day.
    written: Any = redis_client.get(WHOLE)
    assert written.isdigit()  # So that the version before can read it.
    assert (int(written) > time.time() * 1_000 - 60_000) is (listed or whole == 0)


def test_a_note_of_another_type_costs_a_round_a_day_and_stops_nothing(redis_client: Redis, redis_url: str) -> None:
    accept(redis_url, "m1", COMPLETED, "r1")
    redis_client.delete(LISTED + PLACE, INDEX.opened, WHOLE)
    redis_client.set(ROUNDS, "of another kind")
    for _ in range(3):
        reconcile(redis_client)
    assert redis_client.zrange(LATE + PLACE, 0, -1) == [b"m1"]
    assert not read_rounds(redis_client, INDEX).prune_is_due(int(time.time() * 1_000))


def test_what_is_listed_beside_the_streams_is_pruned_however_long_a_look_at_the_whole_ledger_takes(
    redis_client: Redis,
) -> None:
    """Of 20 million events it takes a day, and is begun anew by each leader: a deploy changes them."""
    redis_client.zadd(LATE + PLACE, {"gone": int(time.time() * 1_000)})
    fill = redis_client.pipeline(transaction=False)
    for number in range(20_000):
        fill.hset(f"{EVENT}e{number}", "state", "done")
    fill.execute()
    reconcile(redis_client)
    assert not redis_client.exists(WHOLE)  # The look has not come to its end.
    assert not redis_client.exists(LATE + PLACE)


def test_an_event_whose_record_is_about_to_expire_is_not_listed_a_second_time(
    redis_client: Redis, redis_url: str
) -> None:
    """It was settled some seconds after it came, and its record lasts for the retention time from then on."""
    accept(redis_url, "m1", COMPLETED, "r1")
    redis_client.delete(INDEX.open, INDEX.opened)
    came = int(redis_client.time()[0]) * 1_000 - 3_600_000
    listed: Any = redis_client.xrange(LISTED + PLACE)
    ((_, entry),) = listed
    redis_client.delete(LISTED + PLACE)
    redis_client.hset(EVENT + "m1", "received", came - 30_000)
    redis_client.xadd(LISTED + PLACE, entry, id=f"{came - 30_000}-0")
    reconcile(redis_client)
    assert redis_client.xlen(LISTED + PLACE) == 1
    assert not redis_client.exists(LATE + PLACE)


def test_one_leader_looks_once(redis_client: Redis, redis_url: str) -> None:
    accept(redis_url, "m1", COMPLETED, "r1")
    leader = Sweeper(redis_client, queue="credhook", name="n", interval=0.001, retention=3_600)
    leader.run()
    noted = redis_client.get(WHOLE)
    assert noted
    for _ in range(3):
        time.sleep(0.01)
        leader.run()
    assert redis_client.get(WHOLE) == noted
