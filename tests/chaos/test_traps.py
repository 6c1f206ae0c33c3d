"""Each way in which RQ loses a job or runs it twice, done to our events: every one of them is handled once.

What RQ does when a reply is lost after `enqueue` touches the receiver: tests/chaos/test_ingest.py. How soon the work of
a dead worker is under way again, with the lease as shipped: tests/chaos/test_recovery.py.
"""

from typing import Any

from redis import Redis
from rq import Queue
from rq import Worker as StockWorker
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer

from support.store.stores import INDEX, job_id
from support.waiting import until
from support.worker.handled_events import begun, handled_once
from support.worker.harness import HELD, Harness
from support.worker.stock_rq import stock_worker


def test_jobs_that_rq_lost_or_doubled_are_handled_once(harness: Harness) -> None:
    """The states that deaths of RQ's workers, evictions and lost replies leave behind, all at once."""
    redis = harness.redis
    rq = Queue("credhook", connection=redis, serializer=JSONSerializer)
    ids = ["popped", "moved", "evicted", "expired", "doubled", "stuck", "abandoned", "lapsed", "sound"]
    for one in ids:
        harness.happens(one)
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
    with harness.worker() as worker:
        handled_once(harness, *ids)
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
    redis.zadd(INDEX.started, {execution.composite_key: 1})  # RQ counts it as abandoned.


def test_a_stale_copy_of_a_job_does_not_run_it_again(harness: Harness) -> None:
    """RQ runs such a copy: killed after the job was registered as started, before it was taken off the list."""
    harness.happens("m1")
    job = job_id("m1")
    whole: Any = harness.redis.dump("rq:job:" + job)
    with harness.worker():
        harness.reaches("m1", "done")
        # The id alone; and with its hash, as a worker leaves it that was slow to delete it.
        harness.redis.rpush(INDEX.jobs, job)
        until(lambda: not harness.redis.exists(INDEX.jobs), what="the id's end")
        harness.redis.restore("rq:job:" + job, 0, whole)
        harness.redis.rpush(INDEX.jobs, job)
        handled_once(harness, "m1")
    harness.redis.restore("rq:job:" + job, 0, whole)
    harness.redis.rpush(INDEX.jobs, job)
    with stock_worker(harness, "--burst") as stock:
        assert stock.process.wait(60) == 0
    handled_once(harness, "m1")


def test_worker_that_slept_through_its_lease_gives_the_event_up(harness: Harness) -> None:
    harness.plugin(HELD)
    harness.happens("m1")
    with harness.worker("first") as sleeper:
        until(lambda: begun(harness) == ["m1"])
        sleeper.pause()
        with harness.worker("second"):
            until(lambda: begun(harness) == ["m1", "m1"])
            sleeper.resume()
            # Its loop goes on and finds the lease lost, or the watchdog, whose time is over, ends the process first.
            until(lambda: '"lease_lost"' in sleeper.text or '"loop_blocked"' in sleeper.text)
            (harness.folder / "go").touch()
            handled_once(harness, "m1")
