"""RQ's own tools beside ours: what they show of our workers, what they tell them to do, and stock workers at work."""

from accepting import record
from rq import Worker as StockWorker
from rq.command import send_shutdown_command, send_stop_job_command
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker, WorkerStatus
from stand import Stand
from stock import rq, stock_worker
from waiting import until

from credhook.ledger import Index, job_id

HELD = """
@handlers.on("*")
async def first(event, context):
    note("begun", event.webhook_id)
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
    note("first", event.webhook_id)
"""


def the_worker(stand: Stand) -> BaseWorker:
    """The only worker that RQ knows of, once there is one."""
    (worker,) = until(lambda: StockWorker.all(connection=stand.redis, serializer=JSONSerializer), what="a worker")
    return worker


def state(stand: Stand) -> str:
    return the_worker(stand).get_state()


def test_rq_sees_our_worker_from_birth_to_death(stand: Stand) -> None:
    stand.plugin(HELD)
    with stand.worker() as process:
        worker = the_worker(stand)
        assert worker.queue_names() == ["credhook"]
        assert worker.birth_date is not None
        assert worker.last_heartbeat is not None
        until(lambda: state(stand) == WorkerStatus.IDLE, what="idle")
        listed = rq("info", "--url", stand.redis_url, "--raw", "--only-workers")
        assert worker.name in listed
        assert "credhook" in listed
        stand.happens("m1")
        until(lambda: state(stand) == WorkerStatus.BUSY, what="busy")
        (stand.folder / "go").touch()
        stand.reaches("m1", "done")
        until(lambda: state(stand) == WorkerStatus.IDLE, what="idle again")
        until(lambda: the_worker(stand).successful_job_count == 1, what="its count")
        assert 0 < stand.redis.ttl(worker.key) <= 600
        assert process.stop() == 0
    assert StockWorker.all(connection=stand.redis) == []
    assert StockWorker.count(connection=stand.redis) == 0
    assert stand.redis.hexists(worker.key, "death")
    assert 0 < stand.redis.ttl(worker.key) <= 60


def test_a_worker_whose_record_has_expired_registers_anew(stand: Stand) -> None:
    """Redis was away for long, or RQ's clean-up took its worker for dead."""
    with stand.worker() as process:
        worker = the_worker(stand)
        stand.redis.delete(worker.key)
        stand.redis.srem("rq:workers", worker.key)
        stand.redis.srem("rq:workers:credhook", worker.key)
        until(lambda: stand.redis.hexists(worker.key, "birth"), what="another birth", within=60)
        assert the_worker(stand).name == worker.name
        assert stand.redis.sismember("rq:workers:credhook", worker.key)
        assert 0 < stand.redis.ttl(worker.key) <= 600
        assert process.stop() == 0
        assert "chore_failed" not in process.text
    assert StockWorker.count(connection=stand.redis) == 0


def test_rq_suspend_is_obeyed_until_rq_resume(stand: Stand) -> None:
    stand.plugin(HELD)
    stand.happens("m1")
    with stand.worker() as worker:
        until(lambda: stand.notes() == ["begun m1"])
        rq("suspend", "--url", stand.redis_url)
        until(lambda: '"worker_suspended"' in worker.text)
        until(lambda: state(stand) == WorkerStatus.SUSPENDED, what="suspended")
        stand.happens("m2")
        (stand.folder / "go").touch()
        stand.reaches("m1", "done")  # What is under way is finished.
        assert stand.redis.lrange("rq:queue:credhook", 0, -1) == [b"e-m2"]
        rq("resume", "--url", stand.redis_url)
        stand.reaches("m2", "done")
    assert stand.notes() == ["begun m1", "first m1", "begun m2", "first m2"]


def test_stop_job_ends_one_event_as_dead_and_no_other(stand: Stand) -> None:
    stand.plugin(HELD)
    for one in ("m1", "m2"):
        stand.happens(one)
    with stand.worker() as worker:
        until(lambda: sorted(stand.notes()) == ["begun m1", "begun m2"])
        until(lambda: '"worker_started"' in worker.text)
        send_stop_job_command(stand.redis, job_id("m1"), serializer=JSONSerializer)
        assert stand.reaches("m1", "dead")["error"] == "Stopped"
        (stand.folder / "go").touch()
        stand.reaches("m2", "done")
    assert sorted(stand.notes()) == ["begun m1", "begun m2", "first m2"]


def test_the_shutdown_command_ends_the_worker_in_order(stand: Stand) -> None:
    stand.plugin(HELD)
    stand.happens("m1")
    with stand.worker() as process:
        until(lambda: stand.notes() == ["begun m1"])
        send_shutdown_command(stand.redis, the_worker(stand).name)
        until(lambda: '"worker_draining"' in process.text)
        (stand.folder / "go").touch()
        assert process.process.wait(60) == 0
    assert record(stand.redis, "m1")["state"] == "done"


def test_stock_workers_and_ours_share_a_queue(stand: Stand) -> None:
    ids = [f"m{number:02}" for number in range(40)]
    for one in ids:
        stand.happens(one)
    with stock_worker(stand) as stock:
        until(stand.notes, what="the stock worker at work")
        with stand.worker(CREDHOOK_CONCURRENCY="1"):
            for one in ids:
                stand.reaches(one, "done")
        stock.stop()
    assert sorted(stand.notes()) == [f"first {one} 1 completed" for one in ids]
    assert "event_done" in stock.text
    assert "event_done" in (stand.folder / "worker.log").read_text()
    assert not stand.redis.exists(Index("credhook").open)
