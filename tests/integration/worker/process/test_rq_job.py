"""RQ's own worker on our queue, with our job class: each event in a process of its own."""

import signal
from typing import Any

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer
from rq.webhook import Webhook

from credhook.store import SCHEMA
from credhook.worker.process.rq_job import EventJob
from support.store.accepting import record
from support.store.stores import INDEX, job_id
from support.waiting import until
from support.worker.harness import DATA, HELD, Harness
from support.worker.stock_rq import OUR_JOBS, stock_worker

TWO_HANDLERS = """
import os

@handlers.on("*")
async def first(event, context):
    note(os.getpid())

@handlers.on("*")
def second(event, context):
    note(os.getpid())
"""

FAILING_ONCE = """
@handlers.on("*")
async def first(event, context):
    note("run", event.attempt)
    if event.attempt == 1:
        raise Retry(after=0.5)
"""


def test_rqs_worker_handles_each_event_in_a_process_of_its_own(harness: Harness) -> None:
    harness.plugin(TWO_HANDLERS)
    harness.happens("m1")
    harness.happens("m2", DATA)
    with stock_worker(harness, *OUR_JOBS, "--burst") as stock:
        assert stock.process.wait(60) == 0
    assert [record(harness.redis, event_id)["state"] for event_id in ("m1", "m2")] == ["done", "done"]
    first, second, third, fourth = harness.notes()
    assert first == second != third == fourth
    assert list(harness.redis.scan_iter("rq:job:*")) == []


def test_rqs_scheduler_starts_the_next_attempt(harness: Harness) -> None:
    """RQ rounds the time down to whole seconds. A job that is early would be left, and wait for a sweeper."""
    harness.plugin(FAILING_ONCE)
    harness.happens("m1")
    with stock_worker(harness, *OUR_JOBS, "--with-scheduler"):
        harness.reaches("m1", "done")
    assert harness.notes() == ["run 1", "run 2"]


def test_next_attempt_stays_in_rqs_schedule_until_it_is_due(harness: Harness) -> None:
    harness.plugin(FAILING_ONCE)
    harness.happens("m1")
    with stock_worker(harness, *OUR_JOBS, "--burst") as stock:
        assert stock.process.wait(60) == 0
    assert harness.notes() == ["run 1"]
    schedule: Any = harness.redis.zrange(INDEX.scheduled, 0, -1, withscores=True)
    ((_, at),) = schedule
    assert at * 1_000 >= int(record(harness.redis, "m1")["due"])


def test_rqs_worker_finishes_its_event_after_sigterm(harness: Harness) -> None:
    harness.plugin(HELD)
    harness.happens("m1")
    with stock_worker(harness, *OUR_JOBS) as stock:
        until(lambda: harness.notes() == ["begun m1"])
        stock.process.send_signal(signal.SIGTERM)
        (harness.folder / "go").touch()
        assert stock.process.wait(60) == 0
    assert record(harness.redis, "m1")["state"] == "done"


def test_rq_keeps_only_the_class_of_an_error(harness: Harness) -> None:
    harness.happens("m1")
    harness.redis.set(INDEX.schema, SCHEMA + 1)
    with stock_worker(harness, *OUR_JOBS, "--burst") as stock:
        assert stock.process.wait(60) == 0
    queue = Queue("credhook", connection=harness.redis, serializer=JSONSerializer)
    assert FailedJobRegistry(queue=queue).get_job_ids(cleanup=False) == [job_id("m1")]
    result = Job.fetch(job_id("m1"), connection=harness.redis, serializer=JSONSerializer).latest_result()
    assert result is not None
    assert result.exc_string is not None
    assert result.exc_string.strip().rpartition("\n")[2] == "credhook.worker.process.rq_job.JobFailed: ResponseError"
    assert '"job_failed"' in stock.text


def test_job_of_another_client_calls_nothing_in_rqs_worker(redis_client: Redis) -> None:
    queue = Queue("credhook", connection=redis_client, serializer=JSONSerializer)
    queue.enqueue("os.getcwd", job_id="evil")
    with pytest.raises(TypeError, match="names no event"):
        EventJob.fetch("evil", connection=redis_client, serializer=JSONSerializer).perform()


def test_event_job_has_no_callbacks_that_rq_would_call(redis_client: Redis) -> None:
    queue = Queue("credhook", connection=redis_client, serializer=JSONSerializer)
    ours = queue.enqueue("os.system", job_id=job_id("m2"), webhooks=[Webhook("http://127.0.0.1:9/", "finished")])
    callbacks = ("success_callback_name", "failure_callback_name", "stopped_callback_name")
    redis_client.hset(ours.key, mapping=dict.fromkeys(callbacks, "plugin.note"))
    read: Any = EventJob.fetch(ours.id, connection=redis_client, serializer=JSONSerializer)
    assert [read.success_callback, read.failure_callback, read.stopped_callback, *read.webhooks] == [None] * 3
