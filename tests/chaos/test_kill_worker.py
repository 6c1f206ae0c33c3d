"""kill -9 of a worker, at the instants that matter."""

from accepting import record
from harness import Harness
from waiting import until

WAITING = """
@handlers.on("*")
async def held(event, context):
    note("begun", event.attempt)
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
    note("ended", event.attempt)
"""


def test_killed_after_one_of_two_handlers_the_other_alone_runs_again(harness: Harness) -> None:
    harness.plugin('@handlers.on("*")\nasync def quick(event, context):\n    note("quick")\n' + WAITING)
    harness.happens("m1")
    with harness.worker("first") as worker:
        until(lambda: "begun 1" in harness.notes())
        # Until its end is written down, a kill repeats it.
        until(lambda: any(field.endswith(".quick") for field in record(harness.redis, "m1")))
        worker.kill()
    assert record(harness.redis, "m1")["state"] == "accepted"
    (harness.folder / "go").touch()
    with harness.worker("second"):
        harness.reaches("m1", "done")
    assert harness.notes() == ["quick", "begun 1", "begun 2", "ended 2"]


def test_a_worker_that_slept_through_its_lease_leaves_the_event_to_the_next(harness: Harness) -> None:
    harness.plugin(WAITING)
    harness.happens("m1")
    with harness.worker("first") as sleeper:
        until(lambda: harness.notes() == ["begun 1"])
        sleeper.pause()
        with harness.worker("second"):
            until(lambda: "begun 2" in harness.notes())
            sleeper.resume()
            until(lambda: '"lease_lost"' in sleeper.text)
            (harness.folder / "go").touch()
            harness.reaches("m1", "done")
    assert harness.notes() == ["begun 1", "begun 2", "ended 2"]
