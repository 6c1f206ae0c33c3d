"""Each way in which RQ loses a job or runs it twice, done to our events: every one of them is handled once.

What RQ does when a reply is lost after `enqueue` touches the receiver: tests/chaos/test_ingest.py. How soon the work of
a dead worker is under way again, with the lease as shipped: tests/chaos/test_work.py.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from accepting import inbox_on, record
from ordeal import Ordeal, Stub
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis_proxy import redis_proxy
from rq import Queue
from rq import Worker as StockWorker
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer
from serving import Process
from stand import COMPLETED, Stand
from waiting import until

from credhook.events import Event
from credhook.ledger import Index, State, job_id
from credhook.redis.connection import open_redis
from credhook.worker.queue.claim import Claim, Settlement, Worker
from credhook.worker.queue.claims import Claims

HELD = """
import os

@handlers.on("*")
async def held(event, context):
    note("begun", event.webhook_id, os.getpid())
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
    note("first", event.webhook_id)
"""

SECOND_TIME = """
@handlers.on("*")
async def second_time(event, context):
    if event.attempt == 1:
        raise Retry(after=1)
    note("first", event.webhook_id)
"""

INDEX = Index("credhook")


def children(process: Process) -> list[int]:
    pid = process.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    """Whether the process is there, and not only its entry."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def handled(stand: Stand) -> list[str]:
    """The webhook-id of each run that ended well."""
    return sorted(line.split()[1] for line in stand.notes() if line.startswith("first"))


def begun(stand: Stand) -> list[str]:
    return [line.split()[1] for line in stand.notes() if line.startswith("begun")]


def left_of_rq(redis: Redis) -> set[str]:
    """RQ's keys that are about jobs, but for what its workers leave behind to expire."""
    about_workers = (b"rq:queues", b"rq:worker", b"rq:clean_registries", b"rq:scheduler")
    keys = {key for key in redis.scan_iter("rq:*") if not key.startswith(about_workers)}
    expire = {key for key in keys if key.startswith((b"rq:results:", b"rq:execution:")) and redis.ttl(key) > 0}
    return {key.decode() for key in keys - expire}


def answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisTimeoutError:
        return False


def handled_once(stand: Stand, *ids: str) -> None:
    """Each of these events, and nothing is left of any of them but its record."""
    for one in ids:
        stand.reaches(one, "done")
    until(lambda: not left_of_rq(stand.redis), within=60, what=f"the end of {left_of_rq(stand.redis)}")
    assert handled(stand) == sorted(ids)
    for key in (INDEX.open, INDEX.leases, INDEX.dead, INDEX.urgent, INDEX.jobs):
        assert not stand.redis.exists(key), key


@contextmanager
def stock_worker(stand: Stand, *options: str) -> Iterator[Process]:
    """`rq worker` on our queue."""
    rq = str(Path(sys.executable).parent / "rq")
    arguments = ("worker", "--url", stand.redis_url, "--serializer", "json", *options, "credhook")
    environment = {"PYTHONPATH": str(stand.folder), **stand.environment}
    process = Process(stand.folder / "stock.log", rq, *arguments, environment=environment)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.kill()


def claims_of(redis: AsyncRedis, *, lease: float = 5.0) -> Claims:
    return Claims(redis, queue="credhook", lease=lease, retention=3_600, worker=Worker("w", "token"))


async def take_one(claims: Claims) -> Claim:
    (claim,) = (await claims.take(1, urgent=0)).claims
    return claim


async def test_a_hand_back_whose_reply_is_lost_is_written_once(redis_url: str, redis_client: Redis) -> None:
    with redis_proxy(redis_url) as proxy:
        async with open_redis(proxy.url) as redis:
            claims = claims_of(redis)
            async with inbox_on(redis) as inbox:
                await inbox.accept("m1", Event(COMPLETED, "iss_1"))
            claim = await take_one(claims)
            proxy.lose = 1
            ours, _ = await claims.settle(claim, Settlement(State.ACCEPTED, spend=False))
        assert proxy.lost == 1
    assert ours
    assert record(redis_client, "m1")["attempts"] == "0"
    assert redis_client.lrange(INDEX.jobs, 0, -1) == [job_id("m1").encode()]


@pytest.mark.parametrize("state", [State.WAITING, State.ACCEPTED])
async def test_a_renewal_that_comes_after_the_settlement_does_not_bring_the_lease_back(
    redis_client: Redis, async_redis: AsyncRedis, state: State
) -> None:
    """They go over two connections: an event with a lease and no holder would be dropped from the queue when popped."""
    claims = claims_of(async_redis)
    async with inbox_on(async_redis) as inbox:
        await inbox.accept("m1", Event(COMPLETED, "iss_1"))
    claim = await take_one(claims)
    await claims.settle(claim, Settlement(state, wait=0.0))
    assert await claims.renew([claim]) == [claim]
    assert not redis_client.exists(INDEX.leases)
    assert not redis_client.exists(INDEX.busy + "iss_1")
    assert (await take_one(claims)).event_id == "m1"


def test_what_rq_has_lost_or_doubled_is_handled_once(stand: Stand) -> None:
    """The states that deaths of RQ's workers, evictions and lost replies leave behind, all at once."""
    redis = stand.redis
    rq = Queue("credhook", connection=redis, serializer=JSONSerializer)
    ids = [
        "popped", "moved", "evicted", "expired", "doubled", "stuck", "abandoned", "lapsed", "sound",
    ]  # fmt: skip
    for one in ids:
        stand.happens(one)
    # BLPOP, as RQ does on two queues, and then death.
    redis.lrem(INDEX.jobs, 0, job_id("popped"))
    # BLMOVE, and then death; or its reply was lost.
    redis.lrem(INDEX.jobs, 0, job_id("moved"))
    redis.lpush(INDEX.intermediate, job_id("moved"))
    # The same, after which RQ's maintenance has found it and, without a retry of RQ's, failed it unrun.
    redis.lrem(INDEX.jobs, 0, job_id("stuck"))
    fail(redis, rq, "stuck", "Job was stuck in intermediate queue.")
    # Memory was short: the hash is gone, and then the id was dropped silently; or it still stands in the queue.
    redis.delete("rq:job:" + job_id("expired"))
    redis.lrem(INDEX.jobs, 0, job_id("expired"))
    redis.delete("rq:job:" + job_id("evicted"))
    # The reply was lost after `enqueue`, and redis-py sent it again.
    redis.rpush(INDEX.jobs, job_id("doubled"))
    # Its worker died; RQ has counted it as abandoned, or is about to.
    redis.lrem(INDEX.jobs, 0, job_id("abandoned"))
    start_and_die(redis, rq, "abandoned")
    StartedJobRegistry(queue=rq).cleanup()
    redis.lrem(INDEX.jobs, 0, job_id("lapsed"))
    start_and_die(redis, rq, "lapsed")
    assert set(FailedJobRegistry(queue=rq).get_job_ids(cleanup=False)) == {job_id("stuck"), job_id("abandoned")}
    with stand.worker() as worker:
        handled_once(stand, *ids)
        assert '"events_put_back"' in worker.text


def fail(redis: Redis, rq: Queue, event_id: str, why: str) -> None:
    """As RQ does it."""
    job = Job.fetch(job_id(event_id), connection=redis, serializer=JSONSerializer)
    with redis.pipeline() as pipeline:
        job.set_status(JobStatus.FAILED, pipeline=pipeline)
        job._handle_failure(why, pipeline, worker_name="")
        pipeline.execute()
    assert job.id in FailedJobRegistry(queue=rq)


def start_and_die(redis: Redis, rq: Queue, event_id: str) -> None:
    """As a stock worker does it, with the job popped already and its entry about to lapse."""
    job = Job.fetch(job_id(event_id), connection=redis, serializer=JSONSerializer)
    worker = StockWorker([rq], connection=redis, serializer=JSONSerializer)
    execution = worker.prepare_execution(job)
    with redis.pipeline() as pipeline:
        job.prepare_for_execution(worker.name, pipeline)
        pipeline.execute()
    assert redis.zscore(INDEX.started, execution.composite_key)
    lapse(redis)


def lapse(redis: Redis) -> None:
    """RQ counts all jobs that are under way as abandoned."""
    started: Any = redis.zrange(INDEX.started, 0, -1)
    redis.zadd(INDEX.started, dict.fromkeys(started, 1))


def test_a_stale_copy_of_a_job_does_not_run_it_again(stand: Stand) -> None:
    """RQ runs such a copy: killed after the job was registered as started, before it was taken off the list."""
    stand.happens("m1")
    job = job_id("m1")
    whole: Any = stand.redis.dump("rq:job:" + job)
    with stand.worker():
        stand.reaches("m1", "done")
        # The id alone; and with its hash, as a worker leaves it that was slow to delete it.
        stand.redis.rpush(INDEX.jobs, job)
        until(lambda: not stand.redis.exists(INDEX.jobs), what="the id's end")
        stand.redis.restore("rq:job:" + job, 0, whole)
        stand.redis.rpush(INDEX.jobs, job)
        handled_once(stand, "m1")
    stand.redis.restore("rq:job:" + job, 0, whole)
    stand.redis.rpush(INDEX.jobs, job)
    with stock_worker(stand, "--burst") as stock:
        assert stock.process.wait(60) == 0
    handled_once(stand, "m1")


def test_a_stock_worker_killed_with_its_horse_leaves_its_event_to_ours(stand: Stand) -> None:
    stand.plugin(HELD)
    stand.happens("m1")
    with stock_worker(stand) as stock:
        until(lambda: begun(stand) == ["m1"])
        (horse,) = children(stock)
        os.kill(horse, signal.SIGKILL)  # RQ fails the job now.
        until(lambda: stand.redis.zscore(INDEX.failed, job_id("m1")), what="RQ's failed job")
        stand.happens("m2")
        until(lambda: begun(stand) == ["m1", "m2"])
        (horse,) = children(stock)
        stock.kill()
        os.kill(horse, signal.SIGKILL)
    (stand.folder / "go").touch()
    with stand.worker():
        handled_once(stand, "m1", "m2")


def test_a_horse_that_outlives_its_stock_worker_keeps_its_event(stand: Stand) -> None:
    stand.plugin(HELD)
    stand.happens("m1")
    with stock_worker(stand) as stock:
        until(lambda: begun(stand) == ["m1"])
        (horse,) = children(stock)
        os.kill(stock.process.pid, signal.SIGKILL)
        stock.process.wait()
    try:
        # RQ's entry lapses, and its clean-up counts the job as abandoned.
        lapse(stand.redis)
        StartedJobRegistry("credhook", connection=stand.redis, serializer=JSONSerializer).cleanup()
        stand.happens("m2")
        stand.redis.lrem(INDEX.jobs, 0, job_id("m2"))
        with stand.worker():
            # Once this one has been put back, the other would have been as well: it is older.
            until(lambda: "m2" in begun(stand), what="m2 put back")
            (stand.folder / "go").touch()
            handled_once(stand, "m1", "m2")
            until(lambda: not runs(horse), what="the horse's end")
    finally:
        if runs(horse):
            os.kill(horse, signal.SIGKILL)
    assert begun(stand) == ["m1", "m2"]


def test_workers_whose_supervisor_alone_was_killed_finish_and_end_while_others_go_on(stand: Stand) -> None:
    stand.plugin(HELD)
    stand.happens("m1")
    with stand.worker("orphans") as orphans:
        until(lambda: begun(stand) == ["m1"])
        (holder,) = children(orphans)
        try:
            os.kill(orphans.process.pid, signal.SIGKILL)
            orphans.process.wait()
            until(lambda: '"worker_draining"' in orphans.text)
            stand.happens("m2")
            with stand.worker("others"):
                until(lambda: begun(stand) == ["m1", "m2"], what="m2 in the other fleet")
                assert runs(holder)
                (stand.folder / "go").touch()
                handled_once(stand, "m1", "m2")
            until(lambda: not runs(holder), what="the orphan's end")
        finally:
            if runs(holder):
                os.kill(holder, signal.SIGKILL)
    assert begun(stand) == ["m1", "m2"]


def test_two_clean_ups_of_rqs_at_once_do_not_run_an_event_twice(stand: Stand) -> None:
    """RQ enqueues a lapsed job that has retries left once for each of them."""
    stand.plugin(HELD)
    ids = ["m1", "m2", "m3"]
    for one in ids:
        stand.happens(one)
    with stand.worker("first") as first:
        until(lambda: len(begun(stand)) == 3)
        first.kill()
    redis = stand.redis
    for one in ids:
        redis.hset("rq:job:" + job_id(one), "retries_left", 5)
    lapse(redis)
    barrier = threading.Barrier(4)

    def clean_up() -> None:
        with Redis.from_url(stand.redis_url) as own:
            registry = StartedJobRegistry("credhook", connection=own, serializer=JSONSerializer)
            barrier.wait()
            registry.cleanup()

    threads = [threading.Thread(target=clean_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert redis.llen(INDEX.jobs) > 3, "RQ has mended this: the test has lost its point"
    (stand.folder / "go").touch()
    with stand.worker("second"):
        handled_once(stand, *ids)
    assert Counter(begun(stand)) == Counter(ids * 2)


def test_what_watches_rq_does_not_disturb_events_under_way(stand: Stand) -> None:
    """`.count`, `get_job_ids` and `rq info` clean up: they change what they look at."""
    ids = [f"m{number}" for number in range(60)]
    for one in ids:
        stand.happens(one)
    done = threading.Event()

    def watch() -> None:
        with Redis.from_url(stand.redis_url) as redis:
            queue = Queue("credhook", connection=redis, serializer=JSONSerializer)
            while not done.is_set():
                registries = (
                    queue.started_job_registry, queue.failed_job_registry, queue.scheduled_job_registry,
                    queue.deferred_job_registry, queue.finished_job_registry,
                )  # fmt: skip
                assert [registry.count >= 0 for registry in registries]
                assert queue.started_job_registry.get_job_ids() is not None
                assert queue.count + len(queue.get_jobs()) >= 0

    def look() -> None:
        rq = str(Path(sys.executable).parent / "rq")
        while not done.is_set():
            subprocess.run([rq, "info", "--url", stand.redis_url], capture_output=True, check=True)

    threads = [threading.Thread(target=work) for work in (watch, watch, look)]
    for thread in threads:
        thread.start()
    try:
        with stand.worker(CREDHOOK_CONCURRENCY="5"):
            handled_once(stand, *ids)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_replies_lost_after_our_own_scripts_run_nothing_twice(stand: Stand) -> None:
    stand.plugin("""
@handlers.on("*")
async def sometimes_later(event, context):
    if event.webhook_id.startswith("later") and not any(
        line == f"put off {event.webhook_id}" for line in (notes() if (here / "notes").exists() else ())
    ):
        note("put off", event.webhook_id)
        raise Retry(after=0.2)
    note("first", event.webhook_id)
""")
    ids = [f"{kind}{number}" for kind in ("now", "later") for number in range(12)]
    for one in ids:
        stand.happens(one)
    with redis_proxy(stand.redis_url) as proxy:
        proxy.lose = 16
        with stand.worker(REDIS_URL=proxy.url, CREDHOOK_CONCURRENCY="4") as worker:
            handled_once(stand, *ids)
            assert worker.text.count('"worker_started"') == 1
            assert worker.stop() == 0
        until(lambda: len(stand.redis.client_list()) == 1, what="the proxy without clients")
        assert proxy.lost >= 10


def test_a_retry_waits_for_no_scheduler(stand: Stand) -> None:
    """Our worker and a stock one have each put an event off, and are gone when it is due."""
    stand.plugin(SECOND_TIME)
    stand.happens("m1")
    with stand.worker("first") as first:
        stand.reaches("m1", "waiting")
        assert first.stop() == 0
    stand.happens("m2")
    with stock_worker(stand, "--burst") as stock:
        assert stock.process.wait(60) == 0
    assert record(stand.redis, "m2")["state"] == "waiting"
    assert sorted(stand.redis.zrange(INDEX.scheduled, 0, -1)) == [b"e-m1", b"e-m2"]
    until(lambda: stand.redis.zcount(INDEX.scheduled, 0, time.time()) == 2, what="the time of both")
    with stand.worker("second"):
        handled_once(stand, "m1", "m2")


def test_a_redis_that_is_full_or_silent_for_a_while_does_not_end_the_worker(stand: Stand) -> None:
    """Read-only is the third of these: tests/integration/test_worker.py."""
    stand.plugin(HELD)
    stand.happens("m1")
    with stand.worker(CREDHOOK_CONCURRENCY="1") as worker:
        until(lambda: begun(stand) == ["m1"])
        stand.happens("m2")
        before = children(worker)
        stand.redis.config_set("maxmemory", 1)
        try:
            until(lambda: "OutOfMemoryError" in worker.text, what="a reply that says so")
        finally:
            stand.redis.config_set("maxmemory", 0)
        (stand.folder / "go").touch()
        stand.reaches("m1", "done")
        stand.reaches("m2", "done")
        stand.redis.execute_command("CLIENT", "PAUSE", 6_000, "ALL")  # type: ignore[no-untyped-call]
        until(lambda: "TimeoutError" in worker.text, what="a time-out")
        until(lambda: answers(stand.redis), what="the end of the pause")
        stand.happens("m3")
        handled_once(stand, "m1", "m2", "m3")
        assert children(worker) == before


SIZES = [
    pytest.param(10, id="short"),
    pytest.param(50, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
]

PUT_OFF = """
@handlers.on("*")
async def put_off(event, context):
    note("begin", event.webhook_id, os.getppid())
    await asyncio.sleep(random.uniform(0, 0.1))
    note("end", event.webhook_id, event.attempt)
    if event.attempt == 1:
        raise Retry(after=random.uniform(0, 0.5))
"""


@pytest.mark.parametrize("kills", SIZES)
def test_retries_and_random_kills_lose_nothing_and_complete_nothing_twice(
    tmp_path: Path, redis_url: str, kills: int
) -> None:
    """RQ's workers, killed 50 times among 2,500 jobs with retries, completed 14 of them twice."""
    with Stub().running() as stub:
        ordeal = Ordeal(tmp_path, redis_url, stub)
        ordeal.environment["CREDHOOK_LEASE"] = "1"
        ordeal.plugin(PUT_OFF)
        ids = [f"m{number:05}" for number in range(50 * kills)]
        ordeal.accept(*((one, COMPLETED, f"iss_{one}") for one in ids))
        fleets = [ordeal.fleet(f"fleet{number}", CREDHOOK_CONCURRENCY="10") for number in range(2)]
        try:
            for kill in range(kills):
                fleet, enough = fleets[kill % 2], random.randint(10, 50)
                until(lambda fleet=fleet, enough=enough: begun_in(ordeal, fleet) > enough, what="its part of the work")  # type: ignore[misc]
                fleet.kill()
                fleets[kill % 2] = ordeal.fleet(f"fleet{kill % 2}", CREDHOOK_CONCURRENCY="10")
            ordeal.settles(within=120)
        finally:
            for fleet in fleets:
                fleet.kill()
        records = ordeal.records(ids)
        ordeal.redis.close()
    begins: dict[str, list[float]] = defaultdict(list)
    ends = [note.words[1] for note in ordeal.notes() if note.words[0] == "end"]
    for note in ordeal.notes():
        if note.words[0] == "begin":
            begins[note.words[1]].append(note.at)
    assert {one for one, fields in records.items() if fields.get("state") != "done"} == set()
    assert set(ends) == set(ids)
    assert [one for one, times in begins.items() if max(times) > (int(records[one]["settled"]) + 1) / 1_000] == []
    # It would prove nothing if nothing had been under way.
    assert sum(map(len, begins.values())) - len(ends) >= kills


def begun_in(ordeal: Ordeal, fleet: Process) -> int:
    return sum(note.words[0] == "begin" and note.words[2] == str(fleet.process.pid) for note in ordeal.notes())
