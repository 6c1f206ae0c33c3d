"""RQ's own tools beside ours: what they show of our workers and tell them to do. Two queues of one Redis."""

from rq import Worker as StockWorker
from rq.command import send_kill_horse_command, send_shutdown_command
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker, WorkerStatus

from credhook.store import State
from support.store.accepting import accept, record
from support.store.stored_events import plant
from support.store.stores import job_id
from support.waiting import until
from support.worker.harness import COMPLETED, HELD, Harness
from support.worker.stock_rq import rq


def the_worker(harness: Harness) -> BaseWorker:
    """The only worker that RQ knows of, once there is one."""
    (worker,) = until(lambda: StockWorker.all(connection=harness.redis, serializer=JSONSerializer), what="a worker")
    return worker


def state(harness: Harness) -> str:
    return the_worker(harness).get_state()


def test_rq_sees_our_worker_from_birth_to_death(harness: Harness) -> None:
    harness.plugin(HELD)
    with harness.worker() as process:
        worker = the_worker(harness)
        assert worker.queue_names() == ["credhook"]
        assert worker.birth_date is not None
        assert worker.last_heartbeat is not None
        until(lambda: state(harness) == WorkerStatus.IDLE, what="idle")
        listed = rq("info", "--url", harness.redis_url, "--raw", "--only-workers")
        assert worker.name in listed
        assert "credhook" in listed
        harness.happens("m1")
        until(lambda: state(harness) == WorkerStatus.BUSY, what="busy")
        (harness.folder / "go").touch()
        harness.reaches("m1", "done")
        until(lambda: state(harness) == WorkerStatus.IDLE, what="idle again")
        until(lambda: the_worker(harness).successful_job_count == 1, what="its count")
        assert 0 < harness.redis.ttl(worker.key) <= 600
        assert process.stop() == 0
    assert StockWorker.all(connection=harness.redis) == []
    assert StockWorker.count(connection=harness.redis) == 0
    assert harness.redis.hexists(worker.key, "death")
    assert 0 < harness.redis.ttl(worker.key) <= 60


def test_worker_whose_record_has_expired_registers_again(harness: Harness) -> None:
    """Redis was away for long, or RQ's clean-up took its worker for dead."""
    with harness.worker() as process:
        worker = the_worker(harness)
        harness.redis.srem("rq:workers", worker.key)
        harness.redis.srem("rq:workers:credhook", worker.key)
        harness.redis.delete(worker.key)  # Last: it registers once it sees that this is gone.
        until(lambda: harness.redis.hexists(worker.key, "birth"), what="another birth", within=60)
        assert the_worker(harness).name == worker.name
        assert harness.redis.sismember("rq:workers:credhook", worker.key)
        assert 0 < harness.redis.ttl(worker.key) <= 600
        harness.redis.delete(worker.key)
        harness.redis.set(worker.key, "of another program")
        assert process.stop() == 0
        assert '"death_not_registered"' in process.text
        assert "background_task_failed" not in process.text
    assert StockWorker.count(connection=harness.redis) == 0


def test_rq_suspend_is_obeyed_until_rq_resume(harness: Harness) -> None:
    harness.plugin(HELD)
    harness.happens("m1")
    with harness.worker() as worker:
        until(lambda: harness.notes() == ["begun m1"])
        rq("suspend", "--url", harness.redis_url)
        until(lambda: '"worker_suspended"' in worker.text)
        until(lambda: state(harness) == WorkerStatus.SUSPENDED, what="suspended")
        harness.happens("m2")
        (harness.folder / "go").touch()
        harness.reaches("m1", "done")  # What is under way is finished.
        assert harness.redis.lrange("rq:queue:credhook", 0, -1) == [job_id("m2").encode()]
        rq("resume", "--url", harness.redis_url)
        harness.reaches("m2", "done")
    assert harness.notes() == ["begun m1", "first m1", "begun m2", "first m2"]


def test_shutdown_command_ends_the_worker_in_order(harness: Harness) -> None:
    harness.plugin(HELD)
    plant(harness.redis, "m1", State.UNHANDLED, resource=harness.sandbox.make(COMPLETED))
    with harness.worker(CREDHOOK_LEASE="300") as process:  # The first round of its sweeper is far away.
        until(lambda: harness.notes() == ["begun m1"])
        send_kill_horse_command(harness.redis, the_worker(harness).name)
        until(lambda: '"command_ignored"' in process.text)
        send_shutdown_command(harness.redis, the_worker(harness).name)
        until(lambda: '"worker_draining"' in process.text)
        assert '"shutdown_commanded"' in process.text
        (harness.folder / "go").touch()
        assert process.process.wait(60) == 0
    assert record(harness.redis, "m1")["state"] == "done"


def test_two_queues_handle_the_same_webhook_ids_once_each(harness: Harness) -> None:
    harness.plugin("""
@handlers.on("*")
async def first(event, context):
    import os
    note(os.environ.get("CREDHOOK_QUEUE", "credhook"), event.webhook_id)
""")
    ids = [f"m{number}" for number in range(10)] + ["m:1", "m.1"]
    for webhook_id in ids:
        accept(harness.redis_url, webhook_id, COMPLETED, harness.happens(webhook_id), queue="credhook-e")
    with harness.worker("one"), harness.worker("two", CREDHOOK_QUEUE="credhook-e"):
        until(lambda: not harness.redis.exists("credhook:credhook:open", "credhook:credhook-e:open"), what="the end")
    assert sorted(harness.notes()) == sorted(f"{queue} {one}" for queue in ("credhook", "credhook-e") for one in ids)
    ours = {key.decode() for key in harness.redis.scan_iter("credhook:*")}
    assert all(key.startswith(("credhook:credhook:", "credhook:credhook-e:")) for key in ours)
