"""Steps of Redis's clock. A test moves this host's clock, or what Redis has dated, the other way."""

from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from credhook.ops.fleet import read_fleet
from credhook.store import LONGEST_WAIT, State
from credhook.worker.queue.claims import Settlement
from credhook.worker.queue.clock import ClockWatch, running_seconds
from support.store.stores import EVENT, INDEX, job_id, store_on
from support.worker.claiming import EventQueue

HOUR = 3_600_000
LEASE = 60_000


class Watched:
    """A watch whose Redis seems to step."""

    def __init__(self, redis: Redis) -> None:
        self.stepped = 0.0
        self.watch = ClockWatch(store_on(redis), lease=60.0, clock=lambda: running_seconds() - self.stepped)

    def step(self, seconds: float) -> int:
        """Let Redis's clock step, and return the seconds that the watch notices."""
        self.stepped += seconds
        return round(self.watch.look()[1] / 1_000)


def set_back(queue: EventQueue, *event_ids: str, ms: int = HOUR) -> None:
    """Date what stands in Redis as if the clock had been set back since."""
    for key in (INDEX.open, INDEX.leases, INDEX.heartbeats):
        for member, score in queue.redis.zscan_iter(key):
            queue.redis.zadd(key, {member: score + (ms if score >= 0 else -ms)})
    for event_id in event_ids:
        fields = queue.record(event_id)
        for name, value in fields.items():
            if name == "due":
                queue.redis.hset(EVENT + event_id, name, int(value) + ms)
                queue.redis.zadd(INDEX.scheduled, {job_id(event_id): (int(value) + ms) / 1_000}, xx=True)
            elif name.startswith("p:") and not value.endswith(" 0"):
                attempts, due, *chosen = value.split()
                queue.redis.hset(EVENT + event_id, name, " ".join([attempts, f"{int(due) + ms}", *chosen]))


@pytest.mark.parametrize("seconds", [600, -600, 8, -8, 3_600, -86_400])
def test_step_is_noticed_once_in_the_fleet(redis_client: Redis, seconds: int) -> None:
    first, second = Watched(redis_client), Watched(redis_client)
    assert [one.step(0) for one in (first, second)] == [0, 0]
    with capture_logs() as logs:
        assert [one.step(seconds) for one in (first, second)] == [seconds, seconds]
        assert [one.step(0) for one in (first, second)] == [0, 0]
    assert [(entry["event"], round(entry["seconds"])) for entry in logs] == [("redis_clock_stepped", seconds)]
    assert logs[0]["hint"].startswith("Let the host of Redis correct its clock slowly, and keep the clocks of its")
    step = read_fleet(store_on(redis_client), "here").clock_step
    assert step is not None
    assert (round(step.seconds), step.age < 60) == (seconds, True)
    assert 0 < redis_client.ttl(INDEX.clock) <= 900


def test_slow_correction_is_no_step(redis_client: Redis) -> None:
    watched = Watched(redis_client)
    with capture_logs() as logs:
        assert [watched.step(seconds) for seconds in (0.0, 1.5, 1.5, -1.5)] == [0, 0, 0, 0]
    assert logs == []
    assert read_fleet(store_on(redis_client), "here").clock_step is None


async def test_second_step_is_logged_as_well(redis_client: Redis) -> None:
    watched = Watched(redis_client)
    with capture_logs() as logs:
        assert [watched.step(seconds) for seconds in (0, 600, -600)] == [0, 600, -600]
    assert len(logs) == 2


async def test_step_forward_ends_no_lease(queue: EventQueue) -> None:
    await queue.accept("m1", "m2")
    held = await queue.take()
    watched = Watched(queue.redis)
    watched.step(0)
    now = int(queue.redis.time()[0]) * 1_000
    queue.redis.zadd(INDEX.leases, {"m1": now - 30_000, "m2": now - 900_000})  # m2's had ended before the step.
    queue.redis.zadd(INDEX.open, {"m1": 1})
    assert watched.step(600) == 600
    assert queue.sweep() == 0
    assert now < (queue.redis.zscore(INDEX.leases, "m1") or 0) <= now + LEASE + 5_000
    assert (queue.redis.zscore(INDEX.leases, "m2") or 0) == now - 900_000
    assert await queue.worker().settle(held[0], Settlement(State.DONE)) == (True, None)


@pytest.mark.parametrize("ms", [HOUR, 8_000])
async def test_due_times_come_forward_by_the_step(queue: EventQueue, ms: int) -> None:
    await queue.accept("m1")
    claim = await queue.take_one()
    schedules: Any = {"a.b": (1, 300.0, False), "a.c": (2, 900.0, False), "a.d": (1, None, False)}
    await queue.worker().settle(claim, Settlement(State.WAITING, "no", wait=300.0, schedules=schedules))
    before = queue.record("m1")
    set_back(queue, "m1", ms=ms)
    with capture_logs() as logs:
        queue.sweep()
        queue.sweep()
    assert [entry["event"] for entry in logs] == ["events_brought_forward"]
    after = queue.record("m1")
    for name in ("due", "p:a.b", "p:a.c"):
        assert abs(int(after[name].split()[-1]) - int(before[name].split()[-1])) < 5_000, name
    assert after["p:a.d"] == before["p:a.d"] == "1 0"
    score = queue.redis.zscore(INDEX.scheduled, job_id("m1")) or 0
    assert abs(score * 1_000 - int(after["due"])) < 10
    assert (queue.redis.zscore(INDEX.open, "m1") or 0) <= int(queue.redis.time()[0]) * 1_000 + 1_000


async def test_due_time_lies_a_week_ahead_at_most(queue: EventQueue) -> None:
    """A handler's due time, from before a step back, ends the wait."""
    await queue.accept("m1")
    now = int(queue.redis.time()[0]) * 1_000
    await queue.worker().settle(await queue.take_one(), Settlement(State.WAITING, until=now + 1_000 * HOUR))
    later = int(queue.redis.time()[0]) * 1_000 + 1_000
    assert now <= int(queue.record("m1")["due"]) - 1_000 * LONGEST_WAIT <= later


async def test_postponed_event_comes_forward_by_the_step(queue: EventQueue) -> None:
    await queue.accept("m1")
    chosen = Settlement(State.WAITING, wait=300.0, chosen=True, schedules={"a.b": (1, 300.0, True)})
    await queue.worker().settle(await queue.take_one(), chosen)
    before = queue.record("m1")
    set_back(queue, "m1")
    queue.redis.zadd(INDEX.delayed, {"m1": queue.record("m1")["due"]})
    queue.sweep()
    after = queue.record("m1")
    due, now = int(after["due"]), int(queue.redis.time()[0]) * 1_000
    assert abs(due - int(before["due"])) < 5_000
    assert abs(int(after["p:a.b"].split()[1]) - due) < 5_000
    assert after["p:a.b"].endswith(" chosen")
    assert queue.redis.zscore(INDEX.delayed, "m1") == due
    assert -now - 1_000 <= (queue.redis.zscore(INDEX.open, "m1") or 0) < 0


async def test_postponed_event_without_its_job_is_put_back(queue: EventQueue) -> None:
    await queue.accept("m1")
    await queue.worker().settle(await queue.take_one(), Settlement(State.WAITING, wait=0.001, chosen=True))
    queue.redis.zrem(INDEX.scheduled, job_id("m1"))
    queue.redis.hset(EVENT + "m1", "due", 1)
    queue.redis.zadd(INDEX.open, {"m1": -1})
    assert queue.sweep() == 1
    assert (await queue.take_one()).event_id == "m1"


async def test_leases_of_dead_workers_end_although_the_clock_went_back(queue: EventQueue) -> None:
    await queue.accept("m1")
    await queue.take()
    queue.redis.zadd(INDEX.heartbeats, {"gone": int(queue.redis.time()[0]) * 1_000})
    set_back(queue, "m1")
    queue.sweep()
    now = int(queue.redis.time()[0]) * 1_000 + 1_000
    assert (queue.redis.zscore(INDEX.leases, "m1") or 0) <= now + LEASE
    assert (queue.redis.zscore(INDEX.heartbeats, "gone") or 0) <= now


async def test_lock_of_a_dead_sweeper_lasts_three_rounds_at_most(queue: EventQueue) -> None:
    assert queue.redis.set(INDEX.sweeper_lock, "dead", px=HOUR)
    assert queue.sweep() == 0
    assert queue.redis.pttl(INDEX.sweeper_lock) <= 3_000


def test_many_events_are_brought_forward_in_one_round(queue: EventQueue) -> None:
    now = int(queue.redis.time()[0]) * 1_000
    ids = [f"m{number}" for number in range(250)]
    queue.plant(*ids, moved=now + HOUR, state="waiting", due=now + HOUR + 9_000)
    queue.redis.zadd(INDEX.scheduled, {job_id(one): (now + HOUR + 9_000) / 1_000 for one in ids})
    queue.sweep()
    assert queue.redis.zcount(INDEX.scheduled, now / 1_000 + 60, "+inf") == 0
    assert all(int(queue.record(one)["due"]) < now + 60_000 for one in ids)


def test_announcement_from_the_future_is_no_sign_of_life(redis_client: Redis) -> None:
    later = int(redis_client.time()[0]) * 1_000 + HOUR
    text = (
        '{"version":"1","pid":1,"handlers":{},"slots":1,"in_flight":0,"platform":{"key":"k"},"config_fingerprint":{}}'
    )
    redis_client.hset(INDEX.announcements, "h.s.1", f"{later} {later} {text}")
    fleet = read_fleet(store_on(redis_client), "here")
    assert (fleet.workers, [worker.silent for worker in fleet.missing]) == ((), [0.0])
