"""The supervisor replaces worker processes that die, block or hang, and stops them in order."""

import os
import signal

import pytest

from credhook.sandbox.local.environment import free_port
from support.process.serving import children, running
from support.redis.redis_server import configured
from support.store.accepting import record
from support.store.stores import job_id
from support.waiting import until
from support.worker.handled_events import begun, handled
from support.worker.harness import HELD, Harness

BLOCKING = """
@handlers.on("*")
async def blocks_the_loop(event, context):
    if event.webhook_id == "m1":
        note("run", event.attempt)
        time.sleep(60)
"""

#: For m1 a coroutine function swallows its cancellations, for m2 and m3 a plain function hangs in its thread.
HANGING = """
@handlers.on("*")
async def swallows(event, context):
    while event.webhook_id == "m1" and event.attempt == 1:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

@handlers.on("*")
def hangs(event, context):
    if event.webhook_id in {"m2", "m3"} and event.attempt == 1:
        time.sleep(600)
"""


def test_a_handler_that_blocks_the_loop_is_named_and_its_process_replaced(harness: Harness) -> None:
    harness.plugin(BLOCKING)
    harness.happens("m1")
    with harness.worker(CREDHOOK_MAX_ATTEMPTS="2", CREDHOOK_GRACE="3600") as worker:  # Its lease decides.
        until(lambda: harness.notes() == ["run 1"])
        for one in ("m2", "m3"):
            harness.happens(one)
        until(lambda: '"loop_blocked"' in worker.text)
        assert "blocks_the_loop" in next(line for line in worker.text.splitlines() if '"loop_blocked"' in line)
        for one in ("m2", "m3"):
            harness.reaches(one, "done")
        assert harness.reaches("m1", "dead")["error"] == "WorkerDied"
        blocked = worker.text.count('"loop_blocked"')
        assert worker.stop() == 0
    # More than two runs if the supervisor stood still as well: then the event is not blamed.
    assert {"run 1", "run 2"} <= {*harness.notes()}
    assert 2 <= len(harness.notes()) <= blocked


def test_in_development_it_is_named_as_soon_although_leases_are_long(harness: Harness) -> None:
    # In development, time.sleep would be refused.
    harness.plugin('import ctypes\n\n@handlers.on("*")\nasync def waits(event, context): ctypes.CDLL(None).sleep(60)\n')
    harness.happens("m1")
    with harness.worker(CREDHOOK_DEV="1", CREDHOOK_LEASE="300") as worker:
        until(lambda: '"loop_blocked"' in worker.text)


@pytest.mark.parametrize(
    ("whom", "number"),
    [
        ("all its processes", signal.SIGTERM),
        ("a worker process", signal.SIGHUP),
        ("all its processes", signal.SIGHUP),
    ],
)
def test_a_stop_lets_what_is_under_way_finish(harness: Harness, whom: str, number: signal.Signals) -> None:
    """systemd, Ctrl-C and a closed terminal ask all processes at once; a container's runtime asks the first alone."""
    harness.plugin(HELD)
    harness.happens("m1")
    with harness.worker() as worker:
        until(lambda: begun(harness) == ["m1"])
        if whom == "all its processes":
            for _ in range(1 + (number == signal.SIGHUP)):  # One comes from the system and one from the shell.
                for pid in (worker.process.pid, *children(worker)):
                    os.kill(pid, number)
        else:
            os.kill(children(worker)[0], number)
        until(lambda: '"worker_draining"' in worker.text)
        harness.happens("m2")
        (harness.folder / "go").touch()
        assert worker.process.wait(60) == 0
    assert handled(harness) == ["m1"]
    assert record(harness.redis, "m1")["state"] == "done"
    assert harness.redis.lrange("rq:queue:credhook", 0, -1) == [job_id("m2").encode()]


@pytest.mark.parametrize("grace", ["0.5", "3600"], ids=["the grace ends", "a second signal"])
def test_drain_hands_unfinished_events_back_unspent(harness: Harness, grace: str) -> None:
    harness.plugin(HELD)
    harness.happens("m1")
    with harness.worker("first", CREDHOOK_GRACE=grace) as first:
        until(lambda: begun(harness) == ["m1"])
        first.process.send_signal(signal.SIGTERM)
        if grace == "3600":
            until(lambda: '"worker_draining"' in first.text)
            first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(60) == 0
    assert "lapses" not in record(harness.redis, "m1")
    assert harness.redis.lrange("rq:queue:credhook", 0, -1) == [job_id("m1").encode()]
    (harness.folder / "go").touch()
    with harness.worker("second"):
        assert "attempts" not in harness.reaches("m1", "done")
    assert begun(harness) == ["m1", "m1"]
    assert handled(harness) == ["m1"]


def test_a_process_whose_handlers_hang_is_replaced(harness: Harness) -> None:
    harness.plugin(HANGING)
    hanging = ["m1", "m2", "m3"]  # Of four places.
    for one in hanging:
        harness.happens(one)
    with harness.worker(CREDHOOK_CONCURRENCY="4", CREDHOOK_HANDLER_TIMEOUT="0.3") as worker:
        until(lambda: '"handlers_hung"' in worker.text)
        until(lambda: worker.text.count('"worker_started"') == 2, what="another")
        assert '"worker_died"' in worker.text
        harness.happens("m4")
        for one in (*hanging, "m4"):
            harness.reaches(one, "done")
        with configured(harness.redis, "min-replicas-to-write", "1"):
            os.kill(children(worker)[0], signal.SIGKILL)
            until(lambda: '"death_not_noted"' in worker.text, what="a death that Redis cannot note")
        until(lambda: worker.text.count('"death_noted"') == 2, what="its note")
        assert '"worker_missed"' not in worker.text  # Its supervisor has put the events back.
        assert worker.stop() == 0


def test_sigterm_while_redis_is_away_ends_it_with_0(harness: Harness) -> None:
    with harness.worker(REDIS_URL=f"redis://127.0.0.1:{free_port()}/0") as worker:
        until(lambda: '"redis_unusable"' in worker.text)
        assert worker.stop() == 0
    assert "Traceback" not in worker.text


def test_sigterm_while_the_workers_are_still_starting_ends_it_with_0(harness: Harness) -> None:
    with running(
        harness.folder / "worker.log", "worker", "--processes", "2", environment=harness.environment
    ) as worker:
        until(lambda: len(children(worker)) == 2, what="the processes")
        assert worker.stop() == 0
    assert "Traceback" not in worker.text
