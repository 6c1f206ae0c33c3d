"""The parts of RQ that we rely on: each test compares with RQ's own output, and breaks before a user does."""

from datetime import UTC, datetime
from typing import Any

from redis import Redis
from rq import Queue
from rq import Worker as StockWorker
from rq.job import Job
from rq.registry import ScheduledJobRegistry, StartedJobRegistry
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer

from credhook.store import State
from credhook.store.connection import REDIS_TIMEOUT, open_redis_sync
from credhook.store.job import FAILURE_TTL, JOB_FUNCTION, JOB_TIMEOUT, event_of
from credhook.store.job import job_id as id_in
from credhook.worker.handlers.registry import Registry
from credhook.worker.process.concurrent import ConcurrentWorker
from credhook.worker.queue.claims import Settlement
from support.process.scraping import worker_settings
from support.store.accepting import values
from support.store.stores import job_id, store_on
from support.worker.claiming import EventQueue

#: The one kind of field that may differ between two jobs that were enqueued one after the other.
TIMES = {b"created_at", b"enqueued_at"}


def everything(redis: Redis) -> dict[bytes, Any]:
    """All keys of RQ's with their values and expiries, of a hash without its empty fields, its times and its data."""
    found: dict[bytes, Any] = {}
    for key, value in values(redis, "rq:*"):
        kept = value
        if isinstance(value, dict):
            kept = {name: text for name, text in value.items() if text and name not in TIMES | {b"data"}}
        found[key] = kept, redis.ttl(key)
    return found


async def test_job_is_what_enqueue_writes_without_empty_fields(redis_client: Redis, queue: EventQueue) -> None:
    job = Queue("credhook", connection=redis_client, serializer=JSONSerializer).enqueue(
        JOB_FUNCTION,
        args=(),
        job_id=job_id("msg_1"),
        job_timeout=JOB_TIMEOUT,
        result_ttl=0,
        failure_ttl=FAILURE_TTL,
        description="credhook event",
    )
    theirs = redis_client.hgetall(job.key)
    rq_wrote = everything(redis_client)
    redis_client.flushall()

    await queue.accept("msg_1")
    ours = redis_client.hgetall("rq:job:" + job_id("msg_1"))

    assert everything(redis_client) == rq_wrote
    assert list(map(len, (ours[name] for name in TIMES))) == list(map(len, (theirs[name] for name in TIMES)))
    assert set(ours) == {name for name, value in theirs.items() if value}


async def test_rq_reads_the_job_back(redis_client: Redis, queue: EventQueue) -> None:
    for event_id in ("msg_1", "a:b", "~!@#" * 60):
        await queue.accept(event_id)
        job = our_job(redis_client, event_id)
        assert job.func_name == JOB_FUNCTION
        assert event_of("credhook", job.id) == event_id
        assert job.kwargs == {}
        assert job.created_at is not None
        assert abs((datetime.now(UTC) - job.created_at).total_seconds()) < 60
    assert Queue("credhook", connection=redis_client).count == 3


def test_ids_that_are_no_unicode_have_jobs_of_their_own() -> None:
    for event_id in (b"\xff".decode(errors="surrogateescape"), "\\xff", "\ufffd"):
        assert event_of("credhook", job_id(event_id)) == event_id


async def test_redis_keeps_a_job_in_one_listpack(redis_client: Redis, queue: EventQueue) -> None:
    """Of which no value may have more than 64 bytes; the other way takes it three times the memory."""
    event_id = "msg_" + "x" * 200
    await queue.accept(event_id)
    assert redis_client.object("encoding", "rq:job:" + job_id(event_id)) in {b"ziplist", b"listpack"}


def test_job_ids_are_valid_for_rq_and_distinct() -> None:
    ids = ["msg_1", "e-msg_1", "a:b", "a.b", id_in("q", "a:b"), "é", "x" * 256]
    jobs = [id_in(queue, event_id) for queue in ("q", "other") for event_id in ids]
    assert len(set(jobs)) == 2 * len(ids)
    for name in jobs:
        assert Job(id=name, connection=Redis()).id == name


def our_job(redis: Redis, event_id: str = "msg_1") -> Job:
    return Job.fetch(job_id(event_id), connection=redis, serializer=JSONSerializer)


async def test_renewal_is_a_heartbeat_for_rq(redis_client: Redis, queue: EventQueue) -> None:
    await queue.accept("msg_1")
    claim = await queue.take_one()
    assert our_job(redis_client).started_job_registry.get_job_ids() == [claim.job]
    assert Queue("credhook", connection=redis_client).count == 0
    redis_client.zadd("rq:wip:credhook", {f"{claim.job}:{claim.fence}": 1})
    assert await queue.worker().renew([claim]) == []
    job = our_job(redis_client)
    assert job.started_job_registry.get_job_ids() == [job.id]
    await queue.worker().settle(claim, Settlement(State.DONE))
    assert list(redis_client.scan_iter("rq:*")) == [b"rq:queues"]


async def test_waiting_event_is_in_rqs_schedule(redis_client: Redis, queue: EventQueue) -> None:
    await queue.accept("msg_1")
    claim = await queue.take_one()
    await queue.worker().settle(claim, Settlement(State.WAITING, "NotFound 404", wait=90.0))
    job = our_job(redis_client)
    schedule: Any = ScheduledJobRegistry("credhook", connection=redis_client, serializer=JSONSerializer)  # type: ignore[no-untyped-call]
    assert schedule.get_job_ids() == [job.id]
    assert 85 < (schedule.get_scheduled_time(job) - datetime.now(UTC)).total_seconds() <= 90
    assert StartedJobRegistry("credhook", connection=redis_client).get_job_ids() == []
    assert await queue.take() == []


async def test_job_that_rqs_scheduler_moved_can_be_claimed(redis_client: Redis, queue: EventQueue) -> None:
    await queue.accept("msg_1")
    claim = await queue.take_one()
    # RQ counts whole seconds: its scheduler is early by up to one, and TAKE would be first if the time had come.
    await queue.worker().settle(claim, Settlement(State.WAITING, "NotFound 404", wait=1.5))
    scheduler: Any = RQScheduler(["credhook"], connection=redis_client, serializer=JSONSerializer)
    scheduler.acquire_locks()
    redis_client.zadd("rq:scheduled:credhook", {job_id("msg_1"): 1})
    scheduler.enqueue_scheduled_jobs()
    assert redis_client.lrange("rq:queue:credhook", 0, -1) == [job_id("msg_1").encode()]
    assert [claim.event_id for claim in await queue.take()] == ["msg_1"]
    assert not redis_client.exists("rq:scheduled:credhook")


def test_rq_leaves_our_timeout_for_a_silent_redis(redis_url: str) -> None:
    """It writes its own into the client that it is given, which others go on with."""
    stock, ours = open_redis_sync(redis_url), open_redis_sync(redis_url)
    StockWorker(["credhook"], name="w", connection=stock)
    ConcurrentWorker(worker_settings(), Registry([]), store_on(ours), name="w")
    assert stock.connection_pool.connection_kwargs["socket_timeout"] > 60
    assert ours.connection_pool.connection_kwargs["socket_timeout"] == REDIS_TIMEOUT
