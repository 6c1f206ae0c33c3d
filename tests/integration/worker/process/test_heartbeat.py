"""Worker processes announce themselves and take over from silent ones. Redis is real."""

import json
import time
from typing import Any
from unittest.mock import patch

import pytest
from redis import Redis
from redis.exceptions import ConnectionError  # noqa: A004  Redis's own.
from structlog.testing import capture_logs

from credhook.store.announcements import announced, fingerprint
from credhook.store.history import records
from credhook.worker.handlers.registry import Handlers, Registry
from credhook.worker.process.concurrent import ConcurrentWorker
from credhook.worker.process.heartbeat import Heartbeat, silence_seconds
from credhook.worker.queue.leases import reclaim
from support.process.scraping import worker_settings
from support.redis.redis_server import configured
from support.store.stores import INDEX, job_id, store_on
from support.worker.claiming import COMPLETED, EventQueue

SILENCE = 6.0


class Member:
    """The heartbeat of one worker process, on a clock of the test's own."""

    def __init__(self, redis: Redis, name: str, *plugins: Handlers[Any], **settings: Any) -> None:
        self.now, self.redis, self.name = 1_000.0, redis, name
        self.store = store_on(redis)
        registry, chosen = Registry(plugins), worker_settings().model_copy(update=settings)
        worker = ConcurrentWorker(chosen, registry, self.store, name=name)
        self.heartbeat = Heartbeat(self.store, chosen, registry, worker, processes=3, clock=lambda: self.now)

    def beats(self, seconds: float = 1.0) -> None:
        for _ in range(round(seconds / self.heartbeat.interval)):
            self.now += self.heartbeat.interval
            self.heartbeat.beat()

    def falls_silent(self, seconds: float = SILENCE + 1) -> None:
        """Let its last beat have been so many seconds ago."""
        self.redis.zincrby(INDEX.heartbeats, -1_000 * seconds, self.name)


@pytest.fixture(autouse=True)
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host's clock is ahead of Redis's, which alone counts."""
    ahead = time.time() + 3_600
    monkeypatch.setattr(time, "time", lambda: ahead)


async def one(event: Any, context: Any) -> None: ...


def test_process_announces_itself_for_a_day(redis_client: Redis) -> None:
    handlers: Any = Handlers("test")
    handlers.on(COMPLETED)(one)
    member = Member(redis_client, "w1", handlers)
    member.beats()
    redis_client.hset(
        INDEX.announcements, "w1", b"1 2 " + next(announced(redis_client.hgetall(INDEX.announcements))).text
    )
    redis_client.expire(INDEX.announcements, 60)  # The next beat renews it.
    member.beats()
    (found,) = announced(redis_client.hgetall(INDEX.announcements))
    announcement = json.loads(found.text)
    assert found.since == 1 < found.renewed
    assert announcement.keys() == {
        "version", "pid", "processes", "handlers", "slots", "in_flight", "platform", "config_fingerprint",
        "credential_error", "breaker", "breaker_seconds", "never_found", "started", "turns",
    }  # fmt: skip
    settings = worker_settings()
    compared = ("api_url", "token_url", "client_id", "rate", "retention")
    values = {f"CREDHOOK_{name.upper()}": getattr(settings, name) for name in compared}
    assert announcement["config_fingerprint"] == fingerprint(values)
    assert (announcement["handlers"], announcement["processes"]) == ({"test.one": [COMPLETED]}, 3)
    assert 80_000_000 < redis_client.pttl(INDEX.announcements) <= 86_400_000


def test_beats_and_leases_go_on_while_redis_is_full(redis_client: Redis) -> None:
    Member(redis_client, "w1").beats()
    with configured(redis_client, "maxmemory", "1"):
        Member(redis_client, "w2").beats()
        assert [store_on(redis_client).run("process_lock", ["sweeper", "one", 9_000]) for _ in "12"] == [1, 1]
    assert (redis_client.hlen(INDEX.announcements), redis_client.zcard(INDEX.heartbeats)) == (2, 2)


def test_beat_that_redis_denies_is_logged_with_its_remedy(redis_client: Redis, redis_url: str) -> None:
    redis_client.execute_command("ACL SETUSER limited reset on >pw ~* +@all -evalsha")  # type: ignore[no-untyped-call]
    with Redis.from_url(redis_url.replace("redis://", "redis://limited:pw@")) as limited, capture_logs() as logs:
        Member(limited, "w1").beats()
    redis_client.execute_command("ACL DELUSER limited")  # type: ignore[no-untyped-call]
    assert logs[0]["event"] == "heartbeat_refused"
    assert "may not run EVALSHA: allow +evalsha" in logs[0]["hint"]


async def test_events_of_a_silent_process_return_without_a_failure(queue: EventQueue, redis_client: Redis) -> None:
    await queue.accept("m1", "m2", "later")
    gone, here = Member(redis_client, "gone"), Member(redis_client, "here")
    gone.beats()
    assert [claim.event_id for claim in (await queue.worker("gone").take(2, urgent=0)).claims] == ["m1", "m2"]
    here.beats(SILENCE + 1)
    gone.falls_silent()
    with capture_logs() as logs:
        here.beats()
    assert [entry["event"] for entry in logs] == ["worker_missed", "death_noted"]
    assert logs[0]["hint"] == "its host is down, or out of reach of Redis"
    assert (logs[1]["events"], logs[1]["put_back"], logs[1]["own_fault"]) == (2, 2, False)
    assert sorted(logs[1]["webhook_ids"]) == ["m1", "m2"]
    assert redis_client.lindex(INDEX.jobs, -1) == job_id("later").encode()
    assert sorted(claim.event_id for claim in (await queue.worker("here").take(2, urgent=0)).claims) == ["m1", "m2"]
    assert [record["lapses"] for record in records(store_on(redis_client), ("m1", "m2"))] == [1, 1]
    for event_id in ("m1", "m2"):
        assert not {"deaths", "killed"} & queue.record(event_id).keys()
    assert sorted(redis_client.hkeys(INDEX.announcements)) == [b"gone", b"here"]  # It is missed.


def test_process_leaves_a_silent_sibling_to_their_supervisor(redis_client: Redis) -> None:
    """A handler that keeps the interpreter to itself stops the beats. Its supervisor knows which event to blame."""
    sibling, here, other = (Member(redis_client, name) for name in ("h.s.1", "h.s.2", "h.t.1"))
    sibling.beats()
    for member in (here, other):
        member.beats(SILENCE + 1)
    sibling.falls_silent()
    with capture_logs() as logs:
        here.beats(2)
        assert logs == []
        other.beats(2)
    assert [entry["event"] for entry in logs] == ["worker_missed", "death_noted"]


def test_one_process_reclaims_a_silent_process(redis_client: Redis) -> None:
    gone, *others = (Member(redis_client, token) for token in ("gone", "one", "two"))
    gone.beats()
    for member in others:
        member.beats(SILENCE + 1)
    gone.falls_silent()
    with capture_logs() as logs:
        for member in others:
            member.beats(2)
    assert [entry["event"] for entry in logs].count("worker_missed") == 1


@pytest.mark.parametrize(
    "reason", ["the process is new", "it did not beat itself", "it beat late", "Redis did not answer"]
)
def test_process_misses_no_other_before_it_has_beaten_as_long(redis_client: Redis, reason: str) -> None:
    gone, here = Member(redis_client, "gone"), Member(redis_client, "here")
    gone.beats()
    if reason != "the process is new":
        here.beats(SILENCE + 1)
    gone.falls_silent()
    if reason == "it did not beat itself":
        here.now += 60
    if reason == "it beat late":
        here.now += 0.8 * SILENCE
    if reason == "Redis did not answer":
        with patch.object(here.store, "run", side_effect=ConnectionError):
            here.beats(SILENCE)
    with capture_logs() as logs:
        here.beats(SILENCE)
        assert logs == []
        here.beats()
    assert [entry["event"] for entry in logs] == ["worker_missed", "death_noted"]


def test_process_that_leaves_is_not_missed(redis_client: Redis) -> None:
    gone, here = Member(redis_client, "gone"), Member(redis_client, "here")
    gone.beats()
    gone.heartbeat.leave()
    here.beats(SILENCE + 1)
    assert redis_client.zrange(INDEX.heartbeats, 0, -1) == redis_client.hkeys(INDEX.announcements) == [b"here"]
    assert 0 < redis_client.ttl(INDEX.heartbeats) <= 86_400
    gone.beats()  # From its thread, which goes on until the process has ended.
    assert redis_client.hkeys(INDEX.announcements) == [b"here"]
    redis_client.set(INDEX.announcements, "of another type")  # So that `here` cannot say goodbye.
    here.heartbeat.leave()
    redis_client.delete(INDEX.announcements)
    here.beats()
    assert not redis_client.exists(INDEX.announcements)


def test_lost_host_is_missed_for_a_day(
    redis_client: Redis,
) -> None:
    replaced, gone, here = (Member(redis_client, token) for token in ("replaced", "gone", "here"))
    for member in (replaced, gone):
        member.beats()
    assert reclaim(here.store, "replaced", "ended")
    assert redis_client.zrange(INDEX.heartbeats, 0, -1) == [b"gone"]  # Nobody is to miss it.
    now = here.store.clock()
    for token, ago in (("long ago", 87_000_000), ("today", 80_000_000)):
        redis_client.hset(INDEX.announcements, token, f"1 {now - ago} {{}}")
    for silence in (SILENCE + 1, 60):
        here.beats(SILENCE + 1)
        gone.falls_silent(silence)
        here.beats()
        assert sorted(redis_client.hkeys(INDEX.announcements)) == [b"gone", b"here", b"today"]


def test_leaving_process_removes_one_that_it_replaced(redis_client: Redis) -> None:
    now = store_on(redis_client).clock()
    # The other one alive has replaced the one that fell silent before it started.
    for token, started, silent in (("its", 1, 95), ("other", now - 92_000, -9), ("first", 1, 90), ("second", 1, 60)):
        redis_client.hset(INDEX.announcements, token, f"{started} {now - 1_000 * silent} {{}}")
    for left in ([b"its", b"other", b"second"], [b"its", b"other"], [b"its", b"other"]):
        here = Member(redis_client, "here")
        here.beats()
        here.heartbeat.leave()
        assert sorted(redis_client.hkeys(INDEX.announcements)) == left


@pytest.mark.parametrize(("lease", "interval", "silence"), [(1.0, 1 / 3, 1), (15.0, 1.0, 6), (300.0, 1.0, 120)])
def test_lease_sets_beat_and_silence(redis_client: Redis, lease: float, interval: float, silence: float) -> None:
    heartbeat = Member(redis_client, "w", lease=lease).heartbeat
    assert (heartbeat.interval, silence_seconds(lease)) == pytest.approx((interval, silence))


class Stepping(Member):
    """A member whose Redis seems to step."""

    def step(self, seconds: float) -> None:
        watch = self.heartbeat._redis_clock  # noqa: SLF001  Redis's clock cannot be moved here, so the other one is.
        clock = watch._clock  # noqa: SLF001
        watch._clock = lambda: clock() - seconds  # noqa: SLF001


@pytest.mark.parametrize("seconds", [8.0, 600.0])
def test_step_forward_declares_no_worker_dead(redis_client: Redis, seconds: float) -> None:
    here, other = Stepping(redis_client, "here"), Member(redis_client, "other")
    other.beats()
    here.beats(SILENCE + 1)
    other.falls_silent(seconds)  # As it looks between the step and the other's next beat.
    here.step(seconds)
    with capture_logs() as logs:
        here.beats(SILENCE - 1)
    assert [entry["event"] for entry in logs] == ["redis_clock_stepped"]
    with capture_logs() as logs:
        here.beats(2)
    assert [entry["event"] for entry in logs] == ["worker_missed", "death_noted"]  # It has not beaten since.
