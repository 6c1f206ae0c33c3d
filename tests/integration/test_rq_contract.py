"""What we lean on in RQ without its leave: each test compares with RQ's own output, and breaks before a user does."""

from datetime import UTC, datetime
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from receiver.events import Event
from receiver.inbox import Inbox, Outcome
from receiver.ledger import FAILURE_TTL, JOB_FUNCTION, JOB_TIMEOUT, job_id

#: The one kind of field that may differ between two jobs that were enqueued one after the other.
TIMES = {b"created_at", b"enqueued_at"}


def written_by_rq(redis: Redis, event_id: str) -> dict[Any, Any]:
    queue = Queue("q", connection=redis, serializer=JSONSerializer)
    job = queue.enqueue(
        JOB_FUNCTION,
        args=(event_id,),
        job_id=job_id(event_id),
        job_timeout=JOB_TIMEOUT,
        result_ttl=0,
        failure_ttl=FAILURE_TTL,
        description="credhook event",
    )
    return redis.hgetall(job.key)


async def written_by_us(redis: AsyncRedis, event_id: str) -> Outcome:
    inbox = Inbox(redis, queue="q", retention=3_600)
    return await inbox.accept(event_id, Event("openid4vc.issuance.offered", "iss_1"))


def everything(redis: Redis) -> dict[str, Any]:
    """All keys of RQ's with their values, a hash's times left out and its data unpacked."""
    found: dict[str, Any] = {}
    for key in redis.scan_iter("rq:*"):
        kind = redis.type(key)
        if kind == b"hash":
            found[key] = {name: value for name, value in redis.hgetall(key).items() if name not in TIMES | {b"data"}}
        elif kind == b"list":
            found[key] = redis.lrange(key, 0, -1)
        else:
            found[key] = redis.smembers(key)
        found[key + b" expiry"] = redis.ttl(key)
    return found


async def test_a_job_is_byte_for_byte_what_enqueue_writes(redis_client: Redis, async_redis: AsyncRedis) -> None:
    theirs = written_by_rq(redis_client, "msg_1")
    rq_wrote = everything(redis_client)
    redis_client.flushall()

    assert await written_by_us(async_redis, "msg_1") is Outcome.ACCEPTED
    ours = redis_client.hgetall("rq:job:" + job_id("msg_1"))

    assert everything(redis_client) == rq_wrote
    assert list(map(len, (ours[name] for name in TIMES))) == list(map(len, (theirs[name] for name in TIMES)))
    assert set(ours) == set(theirs)


async def test_rq_reads_the_job_back(redis_client: Redis, async_redis: AsyncRedis) -> None:
    for event_id in ("msg_1", "a:b", "~!@#" * 60):
        await written_by_us(async_redis, event_id)
        job = Job.fetch(job_id(event_id), connection=redis_client, serializer=JSONSerializer)
        assert job.func_name == JOB_FUNCTION
        assert job.args == [event_id]
        assert job.kwargs == {}
        assert job.timeout == JOB_TIMEOUT
        assert job.get_result_ttl(500) == 0
        assert job.created_at is not None
        assert abs((datetime.now(UTC) - job.created_at).total_seconds()) < 60
    assert Queue("q", connection=redis_client).count == 3


def test_job_ids_are_of_rqs_alphabet_and_never_meet() -> None:
    ids = ["msg_1", "e-msg_1", "a:b", "a.b", job_id("a:b"), "é", "x" * 256]
    jobs = [job_id(event_id) for event_id in ids]
    assert len(set(jobs)) == len(ids)
    for name in jobs:
        assert Job(id=name, connection=Redis()).id == name
