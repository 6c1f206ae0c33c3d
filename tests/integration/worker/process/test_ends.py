"""How worker processes end, and what becomes of the processes that handlers start. All are real processes."""

import os
import signal

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from credhook.store.job import JOB_FUNCTION
from support.process.serving import children, descendants, runs
from support.store.accepting import record
from support.store.stores import INDEX, job_id
from support.waiting import until
from support.worker.harness import Harness

ENDING = """
import multiprocessing, os, sys

def square(number):
    return number * number

@handlers.on("*")
async def ends(event, context):
    note("run")
    if not (here / "ended").exists():
        (here / "ended").touch()
        {end}

@handlers.on("*")
def in_pool(event, context):
    with multiprocessing.Pool(2) as pool:
        note("pool", *pool.map(square, [1, 2, 3]))
"""

EXITING_TASK = """async def exits():
            sys.exit(0)
        await asyncio.create_task(exits())"""

FORKS = """
import os, signal, warnings

@handlers.on("*")
def forks(event, context):
    warnings.simplefilter("ignore", DeprecationWarning)
    for _ in range(100):
        if not (pid := os.fork()):
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
"""

FORKS_WITH_A_HANDLER = """
import os, signal, time, warnings

@handlers.on("*")
def forks(event, context):
    warnings.simplefilter("ignore", DeprecationWarning)
    ready, write = os.pipe()
    if not (pid := os.fork()):
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        os.write(write, b"1")
        while True:
            time.sleep(0.01)
    os.read(ready, 1)
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)  # CPython 3.13 and 3.14 lose half of the signals to a fork of a thread.
    os.waitpid(pid, 0)
"""

KEPT_POOL = """
from concurrent.futures import ProcessPoolExecutor

pool = None

@handlers.on("*")
def kept(event, context):
    global pool
    pool = pool or ProcessPoolExecutor(1)
    note("pool", pool.submit(abs, -9).result())
"""


def test_worker_whose_handler_ends_it_is_replaced(harness: Harness) -> None:
    harness.plugin(ENDING.format(end="os._exit(0)"))
    harness.happens("m1")
    with harness.worker() as worker:
        harness.reaches("m1", "done")
        assert worker.text.count('"worker_died"') == 1
        assert '"death_noted"' in worker.text
        assert worker.stop() == 0
    assert harness.notes().count("run") == 2


def test_exiting_task_fails_its_handler_alone(harness: Harness) -> None:
    """asyncio lets SystemExit of a task out of the event loop."""
    harness.plugin(ENDING.format(end=EXITING_TASK))
    harness.happens("m1")
    with harness.worker() as worker:
        harness.reaches("m1", "done")
        assert '"worker_died"' not in worker.text
        assert worker.text.count('"task_exited"') == 1
        assert worker.stop() == 0
    assert harness.notes().count("pool 1 4 9") == 1


def test_pool_of_a_handler_does_not_stop_the_worker(harness: Harness) -> None:
    """The pool ends its processes by a signal. They must not write it into the worker's event loop."""
    harness.plugin(ENDING.format(end="pass"))
    for number in range(5):
        harness.happens(f"m{number}")
    with harness.worker() as worker:
        for number in range(5):
            harness.reaches(f"m{number}", "done")
        assert '"worker_draining"' not in worker.text
        assert worker.stop() == 0


@pytest.mark.parametrize("plugin", [FORKS, FORKS_WITH_A_HANDLER], ids=["new", "with a handler of its own"])
def test_signal_to_a_fork_does_not_stop_the_worker(harness: Harness, plugin: str) -> None:
    harness.plugin(plugin)
    harness.happens("m1")
    with harness.worker() as worker:
        harness.reaches("m1", "done")
        assert '"worker_draining"' not in worker.text
        assert worker.stop() == 0


@pytest.mark.parametrize("victim", ["worker", "supervisor", "nobody"])
def test_processes_of_a_handler_end_with_their_worker(harness: Harness, victim: str) -> None:
    harness.plugin(KEPT_POOL)
    harness.happens("m1")
    with harness.worker() as worker:
        harness.reaches("m1", "done")
        (pid,) = children(worker)
        pool = descendants(pid)
        assert pool
        if victim == "nobody":
            assert worker.stop() == 0
        else:
            os.kill(pid if victim == "worker" else worker.process.pid, signal.SIGKILL)
        until(lambda: not any(map(runs, [pid, *pool])), what="the end of both")
        assert ('"supervisor_gone"' in worker.text) == (victim == "supervisor")


def test_thread_that_keeps_the_interpreter_is_named(harness: Harness) -> None:
    """A regular expression keeps it as this call does: neither the event loop nor the heartbeat goes on."""
    harness.plugin("""
import ctypes

@handlers.on("*")
def matches(event, context):
    ctypes.PyDLL(None).sleep(60)
""")
    harness.happens("m1")
    with harness.worker(CREDHOOK_LEASE="15") as worker:  # Longer than a loop may be blocked.
        until(lambda: '"loop_blocked"' in worker.text)
        line = next(line for line in worker.text.splitlines() if '"loop_blocked"' in line)
        assert "plugin.py" in line
        assert "slow regular expression" in line
        assert harness.reaches("m1", "dead")["error"] == "WorkerDied"


def test_poison_candidates_hold_up_no_new_event(harness: Harness) -> None:
    """They have died together twice. A process of their own takes one after the other, and finds the guilty one."""
    harness.plugin("""
import os

@handlers.on("*")
async def ends(event, context):
    if event.webhook_id == "poison":
        os._exit(3)
    if event.webhook_id != "fresh":
        await asyncio.sleep(1)
""")
    innocent = [f"m{number}" for number in range(12)]
    harness.happens("poison")
    for event_id in innocent:
        harness.happens(event_id)
    with harness.worker() as worker:
        until(lambda: '"isolated":true' in worker.text, what="a process for the candidates")
        harness.happens("fresh")
        harness.reaches("fresh", "done")
        states = [record(harness.redis, event_id)["state"] for event_id in innocent]
        assert states.count("done") < len(innocent)
        assert harness.reaches("poison", "dead")["error"] == "WorkerDied"
        for event_id in innocent:
            assert "lapses" not in harness.reaches(event_id, "done")
        until(lambda: len(children(worker)) == 1, what="the end of the process for candidates")
        assert worker.stop() == 0


def test_burst_waits_for_candidates(harness: Harness) -> None:
    harness.plugin(ENDING.format(end="os._exit(0)"))
    harness.happens("m1")
    with harness.worker("worker", "--burst") as worker:
        assert worker.process.wait(60) == 0
    assert record(harness.redis, "m1")["state"] == "done"


def test_burst_ends_when_the_queue_is_empty(harness: Harness) -> None:
    ids = ["m1", "m2", "m3"]
    for event_id in ids:
        harness.happens(event_id)
    with harness.worker("worker", "--processes", "2", "--burst") as worker:
        assert worker.process.wait(60) == 0
    assert {record(harness.redis, event_id)["state"] for event_id in ids} == {"done"}
    assert len(harness.notes()) == 3


def test_planted_job_is_refused_and_kept_aside(harness: Harness) -> None:
    queue = Queue("credhook", connection=harness.redis, serializer=JSONSerializer)
    planted = harness.folder / "planted"
    queue.enqueue("os.system", args=(f"touch {planted}",), job_id="evil", description="canary")
    queue.enqueue(JOB_FUNCTION, args=("m1", "canary"), job_id="evil_too")
    queue.enqueue("os.system", args=(f"touch {planted}",), job_id=job_id("m2"))
    harness.happens("m1")
    with harness.worker() as worker:
        harness.reaches("m1", "done")
        until(lambda: all(job in worker.text for job in ("evil", "evil_too")), what="two refusals")
        assert worker.stop() == 0
    assert not planted.exists()
    assert [line.split()[:2] for line in harness.notes()] == [["first", "m1"]]
    for job in ("evil", "evil_too"):
        assert not harness.redis.exists(f"rq:job:{job}")
        assert 0 < harness.redis.ttl(INDEX.refused + job) <= 86_400
    assert not harness.redis.exists("rq:wip:credhook")
    assert "canary" not in worker.text


def test_logging_of_a_start_up_function_shows_no_claim(harness: Harness) -> None:
    harness.plugin("""
import logging

@handlers.startup
def start():
    logging.basicConfig(level="DEBUG", force=True)

@handlers.on("*")
async def ends(event, context):
    try:
        int("a claim")
    except ValueError:
        logging.getLogger("mine").exception("it failed")
""")
    harness.happens("m1")
    with harness.worker() as worker:
        harness.reaches("m1", "done")
        assert '"logging_restored"' in worker.text
        assert "it failed" in worker.text
        assert "a claim" not in worker.text
        assert worker.stop() == 0
