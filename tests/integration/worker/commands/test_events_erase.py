"""`credhook events erase` on a real Redis: nothing of an event is left, and nothing else goes."""

import json

import pytest
from redis import Redis

from credhook.store import State
from support.store.accepting import accept, everything, record
from support.store.stored_events import HANDLED, list_event, plant
from support.store.stores import INDEX, SNAPSHOT, job_id
from support.worker.events_command import Run, asked, process, terminal
from support.worker.harness import COMPLETED, DATA


def test_nothing_of_an_erased_event_is_left(redis_client: Redis, redis_url: str, events: Run) -> None:
    accept(redis_url, "doomed:1", COMPLETED, "r_doomed")
    accept(redis_url, "doomed:1", COMPLETED, "r_other")  # A conflict.
    accept(redis_url, "kept", COMPLETED, "r_kept")
    accept(redis_url, "kept", DATA, "r_doomed")  # Another one, which names the resource.
    accept(redis_url, "kept", DATA, "r_third")
    job = job_id("doomed:1")
    redis_client.set(SNAPSHOT + "r_doomed", "sealed")
    redis_client.set(INDEX.resource + "r_doomed", 3)
    redis_client.rpush(INDEX.history + "doomed:1", "{}")
    redis_client.hset(INDEX.locks, mapping={"r_doomed": "doomed:1 1 1 w", "r_third": "kept 1 1 w"})
    for key in (INDEX.dead, INDEX.unhandled + DATA, INDEX.quarantined, INDEX.leases):
        redis_client.zadd(key, {"doomed:1": 1})
    for key in (INDEX.scheduled, INDEX.failed, INDEX.isolated, INDEX.prefix + "blocked:r_doomed"):
        redis_client.zadd(key, {job: 1})
    redis_client.zadd(INDEX.started, {f"{job}:x-1": 1})
    redis_client.zadd(f"rq:executions:{job}", {"x-1": 1})
    redis_client.hset(f"rq:execution:{job}:x-1", "id", "x-1")
    redis_client.xadd(f"rq:results:{job}", {"type": "2"})
    assert events("erase", "--resource", "r_doomed", "--yes").stdout == "erased 1\n"
    left = everything(redis_client)
    assert "doomed:1" not in left
    assert "r_doomed" not in left
    assert left.count(job) == 1  # In RQ's queue, where a worker finds nothing by it.
    assert redis_client.hkeys(INDEX.locks) == [b"r_third"]
    assert record(redis_client, "kept")["state"] == "accepted"
    assert redis_client.hkeys(INDEX.conflict + "kept") == [f"{DATA} r_third".encode()]


def test_erase_removes_the_job_of_a_claimed_event_after_its_lease(
    redis_client: Redis, redis_url: str, events: Run
) -> None:
    accept(redis_url, "m1", COMPLETED, "r1")
    redis_client.set(INDEX.resource + "r1", 3)
    redis_client.zadd(INDEX.leases, {"m1": 1_000 * (redis_client.time()[0] + 60)})
    assert "a worker had" in events("erase", "--id", "m1", "--yes").stdout
    assert 50_000 < redis_client.pttl(f"rq:job:{job_id('m1')}") <= 65_000
    assert not redis_client.exists(INDEX.resource + "r1")


def test_an_erasure_crosses_pages_and_spares_what_has_a_similar_name(redis_client: Redis, events: Run) -> None:
    with redis_client.pipeline(transaction=False) as pipeline:
        for number in range(1_200):
            pipeline.hset(
                f"{INDEX.conflict}c{number}", mapping={f"some.type {one}": 1 for one in ("iss_1", "iss_10", "xiss_1")}
            )
        pipeline.execute()
    redis_client.hset(INDEX.locks, mapping={"r1": "m1 1 1 w", "r2": "m 1 1 1 w", "r10": "m10 1 1 w"})
    redis_client.zadd(INDEX.started, {f"{job_id('m1')}:1": 1, f"{job_id('m10')}:1": 1})
    gone = [part for number in range(1_200) for part in ("--id", f"gone{number}")]  # No such event is in the store.
    for name in ("gone1", "gone1199"):  # Only the index has kept their ids: an erasure was cut.
        list_event(redis_client, name, 1, "other")
    list_event(redis_client, "of_the_resource", 1, "iss_1")
    assert events("erase", "--resource", "iss_1", "--id", "m1", "--id", "m 1", *gone).exit_code == 1
    assert (redis_client.xlen(INDEX.by_time), redis_client.zcard(INDEX.by_resource)) == (0, 0)
    left = everything(redis_client)
    assert (left.count(" iss_1"), left.count(" iss_10"), left.count(" xiss_1")) == (1_200, 1_200, 1_200)
    assert redis_client.hgetall(INDEX.locks) == {b"r10": b"m10 1 1 w"}
    assert redis_client.zrange(INDEX.started, 0, -1) == [f"{job_id('m10')}:1".encode()]


def test_erase_removes_leftovers_of_expired_events(redis_client: Redis, events: Run) -> None:
    redis_client.hset(INDEX.conflict + "m1", "some.type r1", 1)
    redis_client.set(INDEX.resource + "r2", 3)
    redis_client.hset(INDEX.conflict + "m3", "some.type other r2", 1)
    list_event(redis_client, "m2", 1, "r2")
    assert events("erase", "--id", "m1").stdout == "erased 0, left 1 (1 not in the store)\n"
    assert events("erase", "--resource", "r2").stdout == "erased 0\n"
    assert redis_client.xlen(INDEX.by_time) == 0
    assert set(redis_client.keys()) == {b"credhook:credhook:by_time", (INDEX.conflict + "m3").encode()}


@pytest.mark.parametrize(
    ("chosen", "told", "left"),
    [("--state=dead", "erased 1, left 1 (1 changed meanwhile)", [b"m1"]), ("--resource=r1", "erased 2", [])],
)
def test_erase_spares_events_that_left_the_chosen_state(
    redis_client: Redis, redis_url: str, chosen: str, told: str, left: list[bytes]
) -> None:
    plant(redis_client, "m1", State.DEAD)
    plant(redis_client, "m2", State.DEAD)
    with terminal(redis_url, "erase", chosen) as (running, write):
        asked(running)
        with process(redis_url, "replay", "--id", "m1") as replay:
            assert replay.communicate(timeout=60)[0] == "replayed 1\n"
        write("y")
        assert running.communicate(timeout=60)[0] == told + "\n"
    assert redis_client.zrange(INDEX.open, 0, -1) == left


def test_delivery_of_an_erased_event_is_accepted_as_new(redis_client: Redis, redis_url: str, events: Run) -> None:
    plant(redis_client, "m1", State.DONE, ended=HANDLED)
    refused = events("erase", "--id", "m1")
    assert refused.exit_code == 2
    assert "add --yes to confirm" in " ".join(refused.stderr.split())
    assert record(redis_client, "m1")
    erased = json.loads(events("erase", "--id", "m1", "--yes", "--json").stdout)
    assert erased == {"erased": 1, "left": {}, "complete": True}
    accept(redis_url, "m1", COMPLETED, "r1")
    assert record(redis_client, "m1").keys() == {"type", "resource", "state", "received"}
