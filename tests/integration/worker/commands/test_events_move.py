"""`credhook events move`: the events of a misspelt queue are seen, and brought over without a loss."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from redis import Redis

from credhook.store import Keys, State, job
from credhook.store.store import Store
from credhook.worker.commands.move import Move
from credhook.worker.commands.search import EventSummary
from support.process.commands import Done, credhook
from support.store.accepting import everything
from support.store.stores import job_id, run_accept, store_on
from support.waiting import until
from support.worker.events_command import Run
from support.worker.harness import COMPLETED, DATA, Harness

HERE, TYPO = Keys("credhook"), Keys("credhok")
NOW = int(time.time() * 1_000)


def accepted(redis: Redis, queue: str, *events: tuple[str, str, str]) -> None:
    """Accept these events, id, type and resource, as the receiver of that queue does."""
    run_accept(store_on(redis, queue), *events)


def move(redis_url: str, *options: str) -> Done:
    return credhook("events", "move", "--from", TYPO.queue, *options, environment={"REDIS_URL": redis_url})


def settled(redis: Redis, one: str, state: State, listed: str, **fields: str) -> None:
    """Give the event of the misspelt queue this state, as a worker does."""
    entry: dict[Any, Any] = {"state": state.value, "settled": NOW, **fields}
    redis.hset(TYPO.event + one, mapping=entry)
    redis.expire(TYPO.event + one, 3_600)
    redis.zrem(TYPO.open, one)
    if listed:
        redis.zadd(listed, {one: NOW})


def test_every_state_keeps_its_place_and_its_progress(redis_client: Redis, redis_url: str) -> None:
    names = ("done", "dead", "gone", "unhandled", "waiting", "new")
    accepted(redis_client, TYPO.queue, *((one, COMPLETED, f"r-{one}") for one in names), ("odd", "of.tomorrow", "r"))
    settled(redis_client, "done", State.DONE, "", **{"h:a.f": "done 3"})
    settled(redis_client, "dead", State.DEAD, TYPO.dead, **{"h:a.f": "done 3", "h:a.g": "dead: ValueError"})
    settled(redis_client, "gone", State.DATA_GONE, TYPO.dead)
    settled(redis_client, "unhandled", State.UNHANDLED, TYPO.unhandled + COMPLETED)
    redis_client.hset(TYPO.event + "waiting", mapping={"state": "waiting", "due": NOW + 600_000, "attempts": 4})
    redis_client.rpush(TYPO.history + "dead", "1 {}")
    redis_client.hset(TYPO.conflict + "dead", f"{DATA} r9", 5)
    newer = {HERE.resource + "r-dead": "3:9"}
    redis_client.mset({TYPO.resource + "r-done": "3:5", TYPO.resource + "r-dead": "1:1"} | newer)
    redis_client.rpush(TYPO.urgent, job_id("erased"))
    redis_client.zadd(TYPO.isolated, {job_id("erased"): 1})
    redis_client.zadd(TYPO.scheduled, {job.job_id(TYPO.queue, "waiting"): NOW / 1_000 + 600})
    redis_client.hset(TYPO.event + "dead", "backfilled", 1)
    accepted(redis_client, "old", ("odd", "of.tomorrow", "r"))  # It has no open event.
    redis_client.sadd("rq:queues", "rq:queue:old")  # It had some.
    said = credhook("status", environment={"REDIS_URL": redis_url}).stdout
    assert "--from credhok" in said
    assert "--from old" in said
    before = {one: redis_client.hgetall(TYPO.event + one) for one in (*names, "odd")}
    redis_client.hset(TYPO.event + "waiting", "holder", "w")  # A worker that has gone.
    redis_client.zadd(TYPO.leases, {"waiting": 1})
    done = move(redis_url, "--json")
    assert json.loads(done.stdout) == {"moved": 7, "left": {}, "complete": True}, done.stderr
    assert {one: redis_client.hgetall(HERE.event + one) for one in before} == before
    for one in ("done", "dead", "gone", "unhandled", "odd"):
        assert 0 < redis_client.ttl(HERE.event + one) <= 3_600
    assert redis_client.zrange(HERE.dead, 0, -1, withscores=True) == [(b"dead", NOW), (b"gone", NOW)]
    assert redis_client.zrange(HERE.unhandled + COMPLETED, 0, -1) == [b"unhandled"]
    assert redis_client.zrange(HERE.quarantined, 0, -1) == [b"odd"]
    for key in (HERE.open, HERE.open_by_received):
        assert sorted(redis_client.zrange(key, 0, -1)) == [b"new", b"waiting"]
    assert redis_client.lrange(HERE.history + "dead", 0, -1) == [b"1 {}"]
    assert redis_client.hgetall(HERE.conflict + "dead") == {f"{DATA} r9".encode(): b"5"}
    assert redis_client.mget(HERE.resource + "r-done", HERE.resource + "r-dead") == [b"3:5", b"3:9"]
    assert 1_200_000 < redis_client.ttl(HERE.backfilled) <= 1_209_600  # Twice the retention time.
    assert redis_client.lrange(HERE.jobs, 0, -1) == [job_id("new").encode()]
    assert redis_client.hget(f"rq:job:{job_id('new')}", "origin") == HERE.queue.encode()
    assert redis_client.zscore(HERE.scheduled, job_id("waiting")) == (NOW + 600_000) / 1_000
    shown = credhook("events", "list", "--json", environment={"REDIS_URL": redis_url}).stdout
    assert {json.loads(line)["webhook_id"] for line in shown.splitlines()} == before.keys()
    left = [line for line in everything(redis_client).splitlines() if TYPO.prefix in line and TYPO.resource not in line]
    assert [line for line in left if "schema" not in line] == []
    assert not redis_client.exists(TYPO.scheduled)
    assert b"rq:queue:credhok" not in redis_client.smembers("rq:queues")
    accepted(redis_client, HERE.queue, ("done", COMPLETED, "r-done"))  # A repeated delivery is a duplicate.
    assert redis_client.hget(HERE.event + "done", "state") == b"done"


@pytest.mark.parametrize("cut", range(3))
def test_broken_off_anywhere_and_repeated(redis_client: Redis, redis_url: str, cut: int) -> None:
    """A transaction that is cut leaves a prefix of its writes."""
    accepted(redis_client, TYPO.queue, ("m1", COMPLETED, "r1"), ("m2", COMPLETED, "r1"))
    redis_client.zadd(HERE.open, {"m1": NOW})
    if cut > 0:
        redis_client.zadd(HERE.event_index(COMPLETED, "r1"), {"m1": NOW})
        redis_client.rename(TYPO.event + "m1", HERE.event + "m1")
    if cut > 1:
        redis_client.zrem(TYPO.event_index(COMPLETED, "r1"), "m1")
    for _ in range(2):
        assert move(redis_url).returncode == 0
    for one in ("m1", "m2"):
        assert redis_client.hget(HERE.event + one, "state") == b"accepted"
        assert redis_client.zscore(HERE.open, one) is not None
    assert redis_client.exists(TYPO.open, TYPO.event + "m1", TYPO.event + "m2", TYPO.jobs) == 0


def test_what_is_in_both_queues_or_under_way_is_not_overwritten(redis_client: Redis, redis_url: str) -> None:
    accepted(redis_client, HERE.queue, ("same", COMPLETED, "r1"), ("other", DATA, "r2"), ("third", COMPLETED, "r2"))
    redis_client.hset(HERE.event + "same", "attempts", 7)
    for one in ("same", "other", "third", "held", "lapsed", "sealed", "broken", "odd", "nobody's", "blind", "stray"):
        accepted(redis_client, TYPO.queue, (one, COMPLETED, "r1"))
    redis_client.zadd(TYPO.leases, {"held": NOW + 86_400_000, "lapsed": NOW - 1})
    redis_client.set(TYPO.snapshot + "sealed", "x")
    redis_client.hdel(TYPO.event + "broken", "received")
    redis_client.hdel(TYPO.event + "nobody's", "resource")
    redis_client.mset({HERE.event + "blind": "no hash", TYPO.event + "stray": "no hash"})
    redis_client.hset(TYPO.event + "odd", "due", "soon")
    done = move(redis_url)
    assert done.stdout == (
        "moved 2 (1 that are in this queue as well), left 9 (2 whose id has another type or resource here, 1 that a "
        "worker has, 1 with presented data that is sealed for that queue, 5 whose record cannot be read)\n"
    )
    assert redis_client.hget(HERE.event + "same", "attempts") == b"7"
    assert redis_client.hget(HERE.event + "other", "type") == DATA.encode()
    assert redis_client.exists(TYPO.event + "same") == 0
    assert redis_client.zscore(TYPO.open, "held")
    assert b"rq:queue:credhok" in redis_client.smembers("rq:queues")  # So that the fleet's status shows the queue.
    left = ("other", "third", "held", "sealed", "broken", "odd", "nobody's", "blind", "stray")
    assert redis_client.exists(*(TYPO.event + one for one in left)) == 9


@pytest.mark.parametrize(
    ("queue", "options", "words"),
    [
        ("newer", ("--beside-workers",), "changed the data of queue newer to schema 99"),
        ("credhok", (), "workers that take from credhok: 1; stop them, or say --beside-workers"),
        ("credhook", (), "CREDHOOK_QUEUE is credhook itself"),
        ("credhok", ("--beside-workers",), ""),
    ],
)
def test_it_refuses_what_is_not_meant(
    redis_client: Redis, redis_url: str, queue: str, options: tuple[str, ...], words: str
) -> None:
    redis_client.hset(TYPO.handlers, "w", f"{NOW} {int(time.time() * 1_000)} {{}}")
    redis_client.hset(TYPO.handlers, "silent", f"{NOW} {NOW - 3_600_000} {{}}")
    redis_client.set(Keys("newer").schema, 99)
    accepted(redis_client, TYPO.queue, ("m1", COMPLETED, "r1"))
    done = credhook("events", "move", "--from", queue, *options, environment={"REDIS_URL": redis_url})
    assert words in done.stderr
    assert (done.returncode == 0) == (not words) == bool(redis_client.exists(HERE.event + "m1"))


def test_an_event_that_changes_meanwhile_is_looked_at_again(redis_client: Redis) -> None:
    class Meddled(Move):
        def _look(self, ids: Sequence[str]) -> tuple[list[bytes], list[Any]]:
            found = super()._look(ids)
            if redis_client.zscore(TYPO.open, "m1"):
                settled(redis_client, "m1", State.DEAD, TYPO.dead)
            return found

    accepted(redis_client, TYPO.queue, ("m1", COMPLETED, "r1"))
    source, target = (store_on(redis_client, keys.queue) for keys in (TYPO, HERE))
    assert Meddled(source, target)([EventSummary("m1", COMPLETED, "accepted", NOW)]) == [b"moved"]
    assert (redis_client.zrange(HERE.dead, 0, -1), redis_client.exists(HERE.open, HERE.jobs)) == ([b"m1"], 0)


def test_workers_live_by_the_clock_of_redis(redis_client: Redis, events: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """This host's clock is an hour ahead of it."""
    then = NOW - 3_600_000
    redis_client.hset(TYPO.handlers, "w", f"{then} {then} {{}}")
    monkeypatch.setattr(Store, "clock", lambda _: then)
    assert "--beside-workers" in events("move", "--from", TYPO.queue).stderr


def test_what_was_moved_is_handled_in_order(harness: Harness) -> None:
    one = harness.sandbox.make()
    accepted(harness.redis, TYPO.queue, ("m1", COMPLETED, one), ("m2", COMPLETED, one))
    assert move(harness.redis_url).stdout == "moved 2\n"
    with harness.worker():
        until(lambda: len(harness.notes()) == 2, what="both")
    assert [note.split()[1] for note in harness.notes()] == ["m1", "m2"]
