"""`credhook worker --isolation fork`: one event at a time, each in a process of its own."""

import os
import signal
import time
from typing import Any

import pytest
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer
from rq.webhook import Webhook
from structlog.testing import capture_logs

from credhook.store import SCHEMA
from credhook.store.errors import StoreRefusal
from credhook.worker.process.jobs import EventJob, IsolatingWorker
from support.store.accepting import record
from support.store.stores import INDEX, job_id, store_on
from support.waiting import until
from support.worker.fleet_harness import Answer, FleetHarness, well
from support.worker.harness import COMPLETED, DATA, HELD, PLAIN, Harness

FORK = ("--isolation", "fork")
ISOLATIONS = [(), FORK]


def test_each_event_is_handled_in_a_process_of_its_own_and_sigterm_ends_the_idle_worker(harness: Harness) -> None:
    harness.plugin("""
import os

@handlers.on("*")
async def first(event, context):
    note(os.getpid())

@handlers.on("*")
def second(event, context):
    note(os.getpid())
""")

    def idle() -> list[int]:
        return [int(client["id"]) for client in harness.redis.client_list() if client["cmd"] == "blmove"]

    harness.happens("m1")
    with harness.worker("worker", *FORK) as worker:
        assert "attempts" not in harness.reaches("m1", "done")
        (waiting,) = until(idle, what="an idle worker")
        harness.redis.client_unblock(waiting, error=True)  # RQ's worker quits, and ours starts another one.
        harness.happens("m2", DATA)
        assert "attempts" not in harness.reaches("m2", "done")
        until(idle, what="an idle worker")
        assert worker.stop() == 0
    assert "Traceback" not in worker.text
    first, second, third, fourth = harness.notes()
    assert first == second != third == fourth


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=["loop", "fork"])
def test_a_planted_job_is_refused_and_kept_aside(harness: Harness, isolation: tuple[str, ...]) -> None:
    queue = Queue("credhook", connection=harness.redis, serializer=JSONSerializer)
    planted = harness.folder / "planted"
    queue.enqueue("os.system", args=(f"touch {planted}",), job_id="evil", description="canary")
    queue.enqueue("credhook.worker.process.jobs.process", args=("m1", "canary"), job_id="evil_too")
    calls = [Webhook("http://127.0.0.1:9/", "finished")]
    ours = queue.enqueue("os.system", args=(f"touch {planted}",), job_id=job_id("m2"), webhooks=calls)
    callbacks = ("success_callback_name", "failure_callback_name", "stopped_callback_name")
    harness.redis.hset(ours.key, mapping=dict.fromkeys(callbacks, "plugin.note"))
    read = EventJob.fetch(ours.id, connection=harness.redis, serializer=JSONSerializer)
    assert [read.success_callback, read.failure_callback, read.stopped_callback, *read.webhooks] == [None] * 3
    harness.happens("m1")
    with harness.worker("worker", *isolation) as worker:
        harness.reaches("m1", "done")
        until(lambda: all(job in worker.text for job in ("evil", "evil_too")), what="two refusals")
        assert worker.stop() == 0
    assert not planted.exists()
    assert ('"event_left"' in worker.text) == bool(isolation)  # The event that the id names: it is not there.
    assert [line.split()[:2] for line in harness.notes()] == [["first", "m1"]]  # And RQ has called nothing.
    assert '"job_failed"' not in worker.text
    for job in ("evil", "evil_too"):
        assert not harness.redis.exists(f"rq:job:{job}")
        assert 0 < harness.redis.ttl(f"credhook:credhook:refused:{job}") <= 86_400
    assert not harness.redis.exists("rq:queue:credhook:intermediate")
    assert not harness.redis.exists("rq:wip:credhook")
    assert "Traceback" not in worker.text
    assert "canary" not in worker.text


def test_a_foreign_job_calls_nothing_in_a_stock_worker_with_our_class(redis_client: Redis) -> None:
    queue = Queue("credhook", connection=redis_client, serializer=JSONSerializer)
    queue.enqueue("os.getcwd", job_id="evil")
    with pytest.raises(TypeError, match="names no event"):
        EventJob.fetch("evil", connection=redis_client, serializer=JSONSerializer).perform()


def test_it_takes_no_job_from_data_of_another_schema(redis_client: Redis) -> None:
    worker = IsolatingWorker(store_on(redis_client), name="w")
    redis_client.set(INDEX.schema, SCHEMA + 1)
    with pytest.raises(StoreRefusal):
        worker.check_for_suspension(burst=False)


def test_rq_keeps_and_logs_the_class_of_an_error_alone(redis_client: Redis, caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue("credhook", connection=redis_client, serializer=JSONSerializer)
    job = queue.enqueue("os.getcwd", job_id="failed")
    worker = IsolatingWorker(store_on(redis_client), name="w")
    with capture_logs() as logs:
        worker.handle_exception(job, ValueError, ValueError("Canary"), None)
    worker.handle_job_failure(job, queue, exc_string="Traceback …\nValueError: Canary: 7\n")
    result = job.latest_result()
    assert result is not None
    assert result.exc_string == "ValueError"
    assert [line["event"] for line in logs] == ["job_failed"]
    assert "Canary" not in caplog.text


def test_a_handler_that_ends_its_process_costs_an_attempt_and_nothing_else(harness: Harness) -> None:
    harness.plugin("""
import os

@handlers.on("openid4vc.issuance.completed")
async def deadly(event, context):
    note("run", event.attempt)
    if event.attempt == 1:
        os._exit(9)

@handlers.on("openid4vc.verification.data")
async def other(event, context):
    note("other")
""")
    harness.happens("m1")
    harness.happens("m2", DATA)
    with harness.worker("worker", *FORK) as worker:
        assert "attempts" not in harness.reaches("m2", "done")
        assert harness.reaches("m1", "done")["attempts"] == "2"
        assert worker.text.count('"worker_started"') == 1
        assert '"worker_died"' not in worker.text
        assert worker.stop() == 0
    assert harness.notes() == ["run 1", "other", "run 2"]


def test_no_retry_is_taken_before_it_is_due(harness: Harness) -> None:
    """RQ rounds the time down to whole seconds. A job that is early would be left, and wait for a sweeper."""
    harness.plugin("""
from credhook import Retry

@handlers.on("*")
async def again(event, context):
    raise Retry(after=59.99)
""")
    ids = [f"m{number}" for number in range(3)]
    for one in ids:
        harness.happens(one)
    with harness.worker("worker", *FORK):
        for one in ids:
            due = int(harness.reaches(one, "waiting")["due"])
            at: Any = until(lambda one=one: harness.redis.zscore("rq:scheduled:credhook", job_id(one)))  # type: ignore[misc]
            assert due <= at * 1_000 < due + 2_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_finishes_the_event_at_hand_and_leaves_the_next_to_others(
    harness: Harness, number: signal.Signals
) -> None:
    harness.plugin(HELD)
    harness.happens("m1")
    with harness.worker("worker", *FORK) as worker:
        until(lambda: harness.notes() == ["begun m1"])
        worker.process.send_signal(number)
        if number == signal.SIGHUP:  # The end of a terminal reaches all processes, twice.
            os.killpg(worker.process.pid, number)
        harness.happens("m2")
        (harness.folder / "go").touch()
        assert worker.process.wait(60) == 0
    assert record(harness.redis, "m1")["state"] == "done"
    with harness.worker("other", *FORK):
        harness.reaches("m2", "done")
    assert harness.notes() == ["begun m1", "first m1", "begun m2", "first m2"]


def test_a_second_signal_ends_the_job_whose_event_returns_when_its_lease_lapses(harness: Harness) -> None:
    def asked_again() -> bool:  # Two signals may come as one.
        worker.process.send_signal(signal.SIGTERM)
        return worker.process.poll() is not None

    harness.plugin(HELD)
    harness.happens("m1")
    with harness.worker("worker", *FORK, CREDHOOK_GRACE="3600") as worker:
        until(lambda: harness.notes() == ["begun m1"])
        until(asked_again)
        assert worker.process.returncode == 0
        assert "HandlerTimeout" not in worker.text  # That would end it, too.
    (harness.folder / "go").touch()
    with harness.worker("other", *FORK):
        harness.reaches("m1", "done")
    assert harness.notes() == ["begun m1", "begun m1", "first m1"]


@pytest.mark.parametrize("isolation", ISOLATIONS, ids=["loop", "fork"])
def test_burst_ends_when_the_queue_is_empty(harness: Harness, isolation: tuple[str, ...]) -> None:
    ids = ["m1", "m2", "m3"]
    for one in ids:
        harness.happens(one)
    with harness.worker("worker", *isolation, "--burst") as worker:
        assert worker.process.wait(60) == 0
    assert {record(harness.redis, one)["state"] for one in ids} == {"done"}
    assert len(harness.notes()) == 3


def test_an_event_in_a_process_of_its_own_waits_for_its_turn_in_the_fleets_rate(rig: FleetHarness) -> None:
    rig.plugin(PLAIN)
    rate, count = 1, 6
    ids = [f"m{number}" for number in range(count)]
    rig.accept(*((one, COMPLETED, f"iss_{one}") for one in ids))
    earliest = time.time()
    with rig.worker("worker", *FORK, CREDHOOK_RATE=str(rate)):
        for one in ids:
            assert "attempts" not in rig.reaches(one, "done")
    assert len(rig.stub.calls) == count
    # A busy machine may make its calls later than it was let, and then one soon after the other; but never before.
    for number, call in enumerate(rig.stub.calls):
        assert number <= rate * (1 + call.at - earliest)


def test_forked_event_keeps_to_the_pause_of_the_fleet(rig: FleetHarness) -> None:
    rig.plugin(PLAIN)
    rig.stub.answer = lambda call: Answer(429, retry_after="1") if call.total == 1 else well(call)
    with rig.worker("worker", *FORK) as worker:
        rig.accept(("m0", COMPLETED, "iss_m0"))
        until(lambda: '"platform_paused"' in worker.text, what="the pause")
        rig.accept(("late", COMPLETED, "iss_late"))
        assert "attempts" not in rig.reaches("late", "done", within=60)
    first, second = rig.stub.calls[:2]
    assert second.at >= first.at + 1
