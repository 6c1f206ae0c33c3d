"""`credhook events` beside workers that have the same events in hand."""

import json
from collections import Counter

from support.store.accepting import everything, record
from support.store.stores import job_id
from support.waiting import until
from support.worker.events_command import Run
from support.worker.harness import HELD, Harness

TWO_HANDLERS = """
@handlers.on("*")
async def good(event, context):
    note("good", event.webhook_id)

@handlers.on("*")
async def bad(event, context):
    note("bad", event.webhook_id)
    if not (here / "mended").exists():
        raise GiveUp("broken")
"""


def test_replays_beside_busy_workers_never_run_a_recorded_handler_twice(harness: Harness, events: Run) -> None:
    harness.plugin(TWO_HANDLERS)
    names = [f"m{each:02}" for each in range(20)]
    for name in names:
        harness.happens(name)
    replayed: int = 0
    with harness.worker("one"), harness.worker("two"):

        def enough() -> bool:
            nonlocal replayed
            replayed += json.loads(events("replay", "--all", "--yes", "--json").stdout)["replayed"]
            return bool(replayed >= 100)

        # A done event would run all of its handlers again; none is done before the last round.
        until(enough, within=60, what="a hundred replays")
        (harness.folder / "mended").touch()
        for name in names:
            until(lambda name=name: record(harness.redis, name)["state"] in {"dead", "done"})  # type: ignore[misc]
            events("replay", "--state", "dead")
            harness.reaches(name, "done")
    runs = Counter(harness.notes())
    assert {runs[f"good {name}"] for name in names} == {1}
    assert sum(runs[f"bad {name}"] for name in names) >= 100


def test_an_event_that_is_erased_from_a_workers_hands_stays_erased(harness: Harness, events: Run) -> None:
    harness.plugin(HELD)
    resource_id = harness.happens("doomed")
    with harness.worker() as worker:
        until(harness.notes)
        result = events("erase", "--resource", resource_id, "--yes")
        assert result.stdout == "erased 1 (1 while a worker had it)\n"
        (harness.folder / "go").touch()
        until(lambda: "lease_lost" in worker.text, what="the worker's notice")
        harness.happens("m2")
        harness.reaches("m2", "done")
        assert worker.stop() == 0
    assert harness.redis.ttl(f"rq:job:{job_id('doomed')}") > 0  # RQ's own, which names no resource.
    harness.redis.delete(f"rq:job:{job_id('doomed')}")
    left = everything(harness.redis)
    assert "doomed" not in left
    assert resource_id not in left
