"""kill -9 of a worker, at the instants that matter."""

from accepting import record
from stand import Stand
from waiting import until

WAITING = """
@handlers.on("*")
async def held(event, context):
    note("begun", event.attempt)
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
    note("ended", event.attempt)
"""


def test_killed_between_fetch_and_the_handlers_end_the_event_is_handled_after_a_restart(stand: Stand) -> None:
    stand.plugin(WAITING)
    stand.happens("m1")
    with stand.worker("first") as worker:
        until(lambda: stand.notes() == ["begun 1"])
        worker.kill()
    assert record(stand.redis, "m1")["state"] == "accepted"
    (stand.folder / "go").touch()
    with stand.worker("second"):
        stand.reaches("m1", "done")
    assert stand.notes() == ["begun 1", "begun 2", "ended 2"]


def test_killed_after_one_of_two_handlers_the_other_alone_runs_again(stand: Stand) -> None:
    stand.plugin('@handlers.on("*")\nasync def quick(event, context):\n    note("quick")\n' + WAITING)
    stand.happens("m1")
    with stand.worker("first") as worker:
        until(lambda: "begun 1" in stand.notes())
        worker.kill()
    (stand.folder / "go").touch()
    with stand.worker("second"):
        stand.reaches("m1", "done")
    assert stand.notes() == ["quick", "begun 1", "begun 2", "ended 2"]


def test_the_next_event_does_not_go_to_a_dead_worker(stand: Stand) -> None:
    """RQ's own scheduler is a forked process that keeps the dead worker's connection open, waiting for a job."""
    with stand.worker("first") as worker:
        stand.happens("m1")
        stand.reaches("m1", "done")
        worker.kill()
    stand.happens("m2")
    assert stand.redis.llen("rq:queue:credhook") == 1
    with stand.worker("second"):
        stand.reaches("m2", "done")


def test_a_worker_that_slept_through_its_lease_leaves_the_event_to_the_next(stand: Stand) -> None:
    stand.plugin(WAITING)
    stand.happens("m1")
    with stand.worker("first") as sleeper:
        until(lambda: stand.notes() == ["begun 1"])
        sleeper.pause()
        with stand.worker("second"):
            until(lambda: "begun 2" in stand.notes())
            sleeper.resume()
            until(lambda: '"lease_lost"' in sleeper.text)
            (stand.folder / "go").touch()
            stand.reaches("m1", "done")
    assert stand.notes() == ["begun 1", "begun 2", "ended 2"]
