"""`credhook worker --isolation fork`: one event at a time, each in a process of its own."""

import signal

from accepting import record
from rq import Queue
from rq.serializers import JSONSerializer
from stand import DATA, Stand
from waiting import until

FORK = ("--isolation", "fork")

SLOW = """
@handlers.on("*")
async def slow(event, context):
    note("begun", event.attempt)
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
    note("ended", event.attempt)
"""


def test_each_event_is_handled_in_a_process_of_its_own(stand: Stand) -> None:
    stand.plugin("""
import os

@handlers.on("*")
async def first(event, context):
    note(os.getpid())

@handlers.on("*")
def second(event, context):
    note(os.getpid())
""")
    stand.happens("m1")
    stand.happens("m2", DATA)
    with stand.worker("worker", *FORK) as worker:
        for one in ("m1", "m2"):
            assert "attempts" not in stand.reaches(one, "done")
        assert worker.stop() == 0
    first, second, third, fourth = stand.notes()
    assert first == second != third == fourth


def test_a_planted_job_is_refused_and_kept_aside(stand: Stand) -> None:
    queue = Queue("credhook", connection=stand.redis, serializer=JSONSerializer)
    planted = stand.folder / "planted"
    queue.enqueue("os.system", args=(f"touch {planted}",), job_id="evil")
    queue.enqueue("credhook.worker.process.jobs.process", args=("m1", "m2"), job_id="evil_too")
    stand.happens("m1")
    with stand.worker("worker", *FORK) as worker:
        stand.reaches("m1", "done")
        until(lambda: worker.text.count('"jobs_refused"') == 2, what="two refusals")
        assert worker.stop() == 0
    assert not planted.exists()
    for job in ("evil", "evil_too"):
        assert not stand.redis.exists(f"rq:job:{job}")
        assert 0 < stand.redis.ttl(f"credhook:credhook:refused:{job}") <= 86_400
    assert not stand.redis.exists("rq:queue:credhook:intermediate")
    assert not stand.redis.exists("rq:wip:credhook")
    assert "Traceback" not in worker.text


def test_a_handler_that_ends_its_process_costs_an_attempt_and_nothing_else(stand: Stand) -> None:
    stand.plugin("""
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
    stand.happens("m1")
    stand.happens("m2", DATA)
    with stand.worker("worker", *FORK) as worker:
        assert "attempts" not in stand.reaches("m2", "done")
        assert stand.reaches("m1", "done")["attempts"] == "2"
        assert worker.text.count('"worker_started"') == 1
        assert '"worker_died"' not in worker.text
        assert worker.stop() == 0
    assert stand.notes() == ["run 1", "other", "run 2"]


def test_sigterm_finishes_the_event_at_hand_and_leaves_the_next_to_others(stand: Stand) -> None:
    stand.plugin(SLOW)
    stand.happens("m1")
    with stand.worker("worker", *FORK) as worker:
        until(lambda: stand.notes() == ["begun 1"])
        worker.process.send_signal(signal.SIGTERM)
        stand.happens("m2")
        (stand.folder / "go").touch()
        assert worker.process.wait(60) == 0
    assert record(stand.redis, "m1")["state"] == "done"
    with stand.worker("other", *FORK):
        stand.reaches("m2", "done")
    assert stand.notes() == ["begun 1", "ended 1"] * 2


def test_sigterm_ends_an_idle_worker(stand: Stand) -> None:
    stand.happens("m1")
    with stand.worker("worker", *FORK) as worker:
        stand.reaches("m1", "done")
        until(lambda: _waits(stand), what="an idle worker")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(60) == 0
    assert "Traceback" not in worker.text


def _waits(stand: Stand) -> bool:
    """Whether a worker blocks on the queue."""
    return any(client["cmd"] in {"blmove", "brpoplpush"} for client in stand.redis.client_list())


def test_burst_ends_when_the_queue_is_empty(stand: Stand) -> None:
    ids = ["m1", "m2", "m3"]
    for one in ids:
        stand.happens(one)
    with stand.worker("worker", *FORK, "--burst") as worker:
        assert worker.process.wait(60) == 0
    assert {record(stand.redis, one)["state"] for one in ids} == {"done"}
    assert len(stand.notes()) == 3
