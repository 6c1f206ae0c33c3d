"""Jobs of the console outlive their console: another console continues them, and only one console at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from structlog.testing import capture_logs

from credhook.console.jobs import Interrupted, Job, Jobs, Stage
from credhook.console.pages import TEMPLATES
from credhook.store import State
from credhook.store.selection import Selection, fingerprint, read_page
from credhook.store.store import Script, Store, SyncStore
from support.console.console import Console, act, ended
from support.store.stored_events import HANDLED, plant, plant_many
from support.store.stores import EVENT, HISTORY, INDEX, run_accept, store_on
from support.waiting import until
from support.worker.harness import COMPLETED

DEAD = Selection(states=frozenset({State.DEAD}))
RETENTION = 3_600


@contextmanager
def running_jobs(store: SyncStore) -> Iterator[Jobs]:
    """Run the jobs of a console that is no process."""
    jobs = Jobs(store)
    jobs.start()
    try:
        yield jobs
    finally:
        jobs.close()


def add(jobs: Jobs, redis: Redis, verb: str = "replay", chosen: Selection = DEAD) -> str:
    """Let a job work on the events that are selected now, and return its id."""
    job = Job(verb, chosen, "ada", fingerprint(read_page(store_on(redis), chosen).events))
    jobs.add(job)
    return job.id


def end_of(jobs: Jobs, id_: str) -> Job:
    until(lambda: jobs.get(id_).ended, what="the end of the job")
    return jobs.get(id_)


class DisturbedStore(Store[Redis]):
    """A store that calls `disturb` once: before or after it runs the script for the time of this number."""

    def __init__(
        self, redis: Redis, script: str, disturb: Callable[[], object], *, number: int = 1, after: bool = False
    ) -> None:
        super().__init__(redis, "credhook", retention=RETENTION)
        self._script, self._disturb, self._left, self._after = script, disturb, number, after

    def run(self, script: Script, arguments: Sequence[Any], *, keys: Sequence[str] = ()) -> Any:
        self._left -= script == self._script
        is_now = script == self._script and self._left == 0
        if is_now and not self._after:
            self._disturb()
        reply = super().run(script, arguments, keys=keys)
        if is_now and self._after:
            self._disturb()
        return reply


def paused_store(redis: Redis) -> tuple[SyncStore, Event, Event]:
    """Return a store that waits in its first replay until the second event is set. It sets the first event before."""
    begun, go = Event(), Event()

    def pause() -> None:
        begun.set()
        assert go.wait(60)

    return DisturbedStore(redis, "replay", pause), begun, go


def test_job_continues_after_its_console_was_killed(tmp_path: Path, redis_url: str, redis_client: Redis) -> None:
    plant_many(redis_client, 10_000, State.DEAD, ended=HANDLED)
    with Console(tmp_path, redis_url) as first:
        with first.operator() as ada:
            job = act(ada, "replay", ("state", "dead"), typed="10000").url
        until(lambda: redis_client.zcard(INDEX.dead) < 10_000, what="a first batch")
        first.kill()
    assert redis_client.zcard(INDEX.dead) > 0
    with Console(tmp_path, redis_url) as second, second.operator() as grace:
        page = ended(grace, grace.base_url.copy_with(path=job.path))
        (continued,) = second.told(event="console_job_continued")
    assert "Replayed 10000" in page
    assert 'max="10000" value="10000"' in page
    assert continued["who"] == "ada"
    assert 0 <= continued["worked"] < 10_000
    assert (redis_client.zcard(INDEX.dead), redis_client.zcard(INDEX.open)) == (0, 10_000)
    pipeline = redis_client.pipeline(transaction=False)
    for number in range(10_000):
        pipeline.llen(f"{HISTORY}msg_{number:05}")
    assert set(pipeline.execute()) == {1}  # No event was replayed twice.


@pytest.mark.parametrize("entry", ["{}", '{"verb": "rename", "chosen": null}', "\x00"])
def test_entry_of_another_version_holds_up_no_job(redis_client: Redis, entry: str) -> None:
    redis_client.hset("credhook:credhook:console_jobs", "0f0f0f", entry)
    with running_jobs(store_on(redis_client)) as jobs:
        job = end_of(jobs, add(jobs, redis_client))
        assert job.stage is Stage.DONE
        assert [listed.id for listed in jobs.all()] == [job.id]


@pytest.mark.parametrize(("after", "interrupted"), [(False, 0), (True, 200)])
def test_job_continues_after_one_error_of_the_connection(redis_client: Redis, after: bool, interrupted: int) -> None:
    plant_many(redis_client, 500, State.DEAD)
    store = DisturbedStore(redis_client, "replay", Mock(side_effect=RedisTimeoutError), number=2, after=after)
    with running_jobs(store) as jobs:
        job = end_of(jobs, add(jobs, redis_client))
    assert (job.stage, job.total, job.outcomes["interrupted"]) == (Stage.DONE, 500, interrupted)
    assert redis_client.zcard(INDEX.open) == 500


class WatchedRedis(Redis):
    """A client that calls `looked` after each look at the jobs."""

    looked: Callable[[], object] = staticmethod(lambda: None)

    def hgetall(self, name: Any) -> Any:
        fields = super().hgetall(name)
        self.looked()
        return fields


def watched(redis: Redis) -> WatchedRedis:
    return WatchedRedis(connection_pool=redis.connection_pool)


def test_job_of_another_console_is_not_forgotten(redis_client: Redis) -> None:
    """Both consoles read the jobs before one of them writes its own."""
    ours, theirs = watched(redis_client), Jobs(store_on(redis_client))
    ours.looked = lambda: add(theirs, redis_client)
    add(Jobs(store_on(ours)), redis_client)
    assert len(theirs.all()) == 2


def test_each_outage_is_logged_once(redis_client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credhook.console.jobs._ROUND_SECONDS", 0.01)
    looks, is_down = [0], [False]

    def look() -> None:
        looks[0] += 1
        if is_down[0]:
            raise RedisConnectionError

    def has_looked(times: int) -> bool:
        return looks[0] >= times

    redis = watched(redis_client)
    redis.looked = look
    with capture_logs() as logs, running_jobs(store_on(redis)):
        for is_down[0] in (True, False, True, False):
            until(partial(has_looked, looks[0] + 3), what="three looks")
    assert [line["event"] for line in logs] == ["console_jobs_wait"] * 2


def test_job_continues_after_its_console_was_stopped(tmp_path: Path, redis_url: str, redis_client: Redis) -> None:
    plant_many(redis_client, 10_000, State.DEAD)
    with Console(tmp_path, redis_url) as first:
        with first.operator() as leaving:
            job = act(leaving, "replay", ("state", "dead")).url
        until(lambda: redis_client.zcard(INDEX.open) > 0, what="a first batch")
        assert first.stop() == 0
        assert first.told(event="console_job_ended") == []
    with Console(tmp_path, redis_url) as second, second.operator() as ada:
        # A graceful end waits for the outcome of its batch.
        assert "Replayed 10000." in ended(ada, ada.base_url.copy_with(path=job.path))


def test_two_consoles_show_each_job_and_one_runs_it(tmp_path: Path, redis_url: str, redis_client: Redis) -> None:
    plant_many(redis_client, 2_000, State.DEAD, ended=HANDLED)
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    with Console(folders[0], redis_url) as one, Console(folders[1], redis_url) as two:
        with one.operator() as ada, two.operator("grace") as grace:
            moment = (datetime.now(UTC) - timedelta(minutes=20)).strftime("%Y-%m-%dT%H:%M:%SZ")
            first = act(ada, "replay", ("state", "dead"), ("until", moment)).url
            assert "replay" in grace.get("/jobs").text
            second = act(grace, "replay", ("state", "dead"), ("since", moment)).url
            for job in (first, second):
                assert "job-done" in ended(grace, grace.base_url.copy_with(path=job.path))
                assert "job-done" in ended(ada, ada.base_url.copy_with(path=job.path))
        told = [line for console in (one, two) for line in console.told(event="console_job_ended")]
    assert sorted(line["who"] for line in told) == ["ada", "grace"]
    assert sum(line["done"] for line in told) == 2_000
    assert {redis_client.llen(f"{HISTORY}msg_{number:05}") for number in range(2_000)} == {1}


@pytest.mark.parametrize("after", [False, True], ids=["before its script", "after its script"])
@pytest.mark.parametrize("verb", ["replay", "erase"])
def test_batch_of_a_console_that_ended_is_done_once(redis_client: Redis, verb: str, after: bool) -> None:
    plant_many(redis_client, 700, State.DEAD)
    store = DisturbedStore(redis_client, verb, Mock(side_effect=Interrupted), number=3, after=after)
    with running_jobs(store) as jobs:
        job = end_of(jobs, add(jobs, redis_client, verb))
    past = "replayed" if verb == "replay" else "erased"
    assert (job.stage, job.worked, job.total) == (Stage.DONE, 700, 700)
    assert job.summary == f"{past} 700" + after * " (200 as a console ended)"
    assert redis_client.zcard(INDEX.dead) == 0


def test_events_that_came_to_match_are_left_by_a_continued_job(redis_client: Redis) -> None:
    plant_many(redis_client, 700, State.DEAD)

    def end() -> None:
        plant(redis_client, "late", State.DEAD)  # It is given up while no console runs.
        raise Interrupted

    with running_jobs(DisturbedStore(redis_client, "erase", end, number=3, after=True)) as jobs:
        job = end_of(jobs, add(jobs, redis_client, "erase"))
    assert (job.stage, job.total) == (Stage.FAILED, 700)
    assert "have changed since they were counted" in job.error
    assert redis_client.zcard(INDEX.dead) == 101


def test_job_waits_while_another_console_has_the_lock(redis_client: Redis) -> None:
    plant_many(redis_client, 3, State.DEAD)
    redis_client.set(INDEX.console_lock, "another", px=60_000)
    with running_jobs(store_on(redis_client)) as jobs:
        name = add(jobs, redis_client)
        # The console has asked for the lock, which it shortens to three rounds.
        until(lambda: redis_client.pttl(INDEX.console_lock) <= 3_000, what="the console's look at the lock")
        assert (jobs.get(name).stage, redis_client.zcard(INDEX.dead)) == (Stage.WAITING, 3)
        redis_client.delete(INDEX.console_lock)
        assert end_of(jobs, name).summary == "replayed 3"


def test_job_leaves_the_next_batch_to_the_console_that_has_the_lock(redis_client: Redis) -> None:
    plant_many(redis_client, 500, State.DEAD)
    store, begun, go = paused_store(redis_client)
    with running_jobs(store) as jobs:
        name = add(jobs, redis_client)
        assert begun.wait(60)
        # As after a stall of this console for longer than its lock lasts.
        redis_client.set(INDEX.console_lock, "another", px=60_000)
        go.set()
        until(lambda: redis_client.zcard(INDEX.open) == 200, what="the batch that was begun")
    assert redis_client.zcard(INDEX.open) == 200
    assert jobs.get(name).stage is Stage.RUNNING


def test_jobs_run_one_after_the_other_and_stop_between_two_batches(redis_client: Redis) -> None:
    plant_many(redis_client, 500, State.DEAD)
    store, begun, go = paused_store(redis_client)
    with running_jobs(store) as jobs:
        first, second, third = (add(jobs, redis_client) for _ in range(3))
        assert begun.wait(60)
        assert [jobs.get(name).stage for name in (first, second, third)] == ["running", "waiting", "waiting"]
        assert "Stop" in shown(jobs.get(first))
        jobs.request_stop(jobs.get(first))
        jobs.request_stop(jobs.get(second))
        go.set()
        ends = [end_of(jobs, name) for name in (first, second, third)]
    # The third job finds other events than were counted for it.
    assert [job.stage for job in ends] == [Stage.STOPPED, Stage.STOPPED, Stage.FAILED]
    assert [(job.worked, job.total) for job in ends] == [(200, 500), (0, 0), (0, 0)]
    assert "Replayed 200; stopped before the other 300." in shown(ends[0])
    assert [job.id for job in jobs.all()] == [third, second, first]


def test_failed_job_says_why_and_lets_the_next_run(redis_client: Redis) -> None:
    plant_many(redis_client, 3, State.DEAD)
    with running_jobs(DisturbedStore(redis_client, "erase", Mock(side_effect=ZeroDivisionError))) as jobs:
        failed = end_of(jobs, add(jobs, redis_client, "erase"))
        assert (failed.stage, failed.error) == (Stage.FAILED, "ZeroDivisionError")
        assert "ZeroDivisionError" in shown(failed)
        assert ">Stop<" not in shown(failed)
        assert end_of(jobs, add(jobs, redis_client)).summary == "replayed 3"


def test_erasure_counts_an_event_that_came_while_it_ran(redis_client: Redis) -> None:
    def accept() -> None:
        run_accept(store_on(redis_client), ("late", COMPLETED, "r1"))

    with running_jobs(DisturbedStore(redis_client, "erase", accept)) as jobs:
        job = end_of(jobs, add(jobs, redis_client, "erase", Selection(resource="r1")))
    assert (job.stage, job.total, job.summary) == (Stage.DONE, 1, "erased 1")
    assert not redis_client.exists(EVENT + "late")


def test_erased_ids_are_in_no_job(redis_client: Redis) -> None:
    plant(redis_client, "msg_1", State.DEAD, resource="iss_1")
    plant(redis_client, "msg_2", State.DEAD, resource="iss_2")
    with running_jobs(store_on(redis_client)) as jobs:
        chosen = Selection(resource="iss_1"), Selection(ids=("msg_2",))
        ends = [end_of(jobs, add(jobs, redis_client, "erase", selection)) for selection in chosen]
    assert [(job.which, job.summary) for job in ends] == [("resource …", "erased 1"), ("id …", "erased 1")]
    kept = str(redis_client.hvals(INDEX.console_jobs))
    assert "iss_1" not in kept
    assert "msg_2" not in kept


def test_jobs_are_kept_for_a_day(redis_client: Redis) -> None:
    jobs, now = Jobs(store_on(redis_client)), datetime.now(UTC)
    old = Job("replay", DEAD, "ada", 0, requested=now - timedelta(days=1, seconds=1))
    jobs.add(old)
    jobs.request_stop(old)
    assert jobs.all() == []
    new = Job("replay", DEAD, "ada", 0)
    jobs.add(new)
    assert redis_client.hkeys(INDEX.console_jobs) == [new.id.encode()]
    assert 86_390_000 < redis_client.pttl(INDEX.console_jobs) <= 86_400_000


def test_fifty_finished_jobs_are_kept(redis_client: Redis) -> None:
    jobs, now = Jobs(store_on(redis_client)), datetime.now(UTC)
    finished = [
        Job("replay", DEAD, "ada", 0, requested=now + timedelta(seconds=number), ended=now) for number in range(60)
    ]
    waiting = Job("replay", DEAD, "ada", 0, requested=now - timedelta(hours=1))
    for job in (waiting, *finished, waiting):
        jobs.add(job)
    assert jobs.all() == [*finished[:9:-1], waiting]


def shown(job: Job) -> str:
    around = {"title": "", "path": "/", "operator": "ada", "now": datetime.now(UTC)}
    return TEMPLATES.get_template("job.html").render(around | {"job": job})
