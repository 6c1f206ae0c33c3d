"""Workers killed at random moments while events are retried: none is lost, and none is completed twice."""

import random
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
from fleet_harness import FleetHarness, Stub
from harness import COMPLETED
from serving import Process
from waiting import until

SIZES = [
    pytest.param(10, id="short"),
    pytest.param(50, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
]

PUT_OFF = """
@handlers.on("*")
async def put_off(event, context):
    note("begin", event.webhook_id, os.getppid())
    await asyncio.sleep(random.uniform(0, 0.1))
    note("end", event.webhook_id, event.attempt)
    if event.attempt == 1:
        raise Retry(after=random.uniform(0, 0.5))
"""


@pytest.mark.parametrize("kills", SIZES)
def test_retries_and_random_kills_lose_nothing_and_complete_nothing_twice(
    tmp_path: Path, redis_url: str, kills: int
) -> None:
    """RQ's workers, killed 50 times among 2,500 jobs with retries, completed 14 of them twice."""
    with Stub().running() as stub:
        rig = FleetHarness(tmp_path, redis_url, stub)
        rig.environment["CREDHOOK_LEASE"] = "1"
        rig.plugin(PUT_OFF)
        ids: list[str] = []
        fleets = [rig.fleet(f"fleet{number}", CREDHOOK_CONCURRENCY="10") for number in range(2)]
        try:
            for kill in range(kills):
                fleet, enough = fleets[kill % 2], random.randint(10, 50)
                until(partial(amid_work, rig, ids, fleet, enough), what="its part of the work")
                fleet.kill()
                fleets[kill % 2] = rig.fleet(f"fleet{kill % 2}", CREDHOOK_CONCURRENCY="10")
            rig.settles(within=120)
        finally:
            for fleet in fleets:
                fleet.kill()
        records = rig.records(ids)
        rig.redis.close()
    begins: dict[str, list[float]] = defaultdict(list)
    ends = [note.words[1] for note in rig.notes() if note.words[0] == "end"]
    for note in rig.notes():
        if note.words[0] == "begin":
            begins[note.words[1]].append(note.at)
    assert {one for one, fields in records.items() if fields.get("state") != "done"} == set()
    assert set(ends) == set(ids)
    assert [one for one, times in begins.items() if max(times) > (int(records[one]["settled"]) + 1) / 1_000] == []
    # It would prove nothing if nothing had been under way.
    assert sum(map(len, begins.values())) - len(ends) >= kills


def amid_work(rig: FleetHarness, ids: list[str], fleet: Process, enough: int) -> bool:
    """Whether it has begun so many, out of a queue that does not run dry, and into which new ids have come."""
    if rig.redis.llen("rq:queue:credhook") < 200:
        more = [f"m{number:05}" for number in range(len(ids), len(ids) + 50)]
        rig.accept(*((one, COMPLETED, f"iss_{one}") for one in more))
        ids += more
    return sum(note.words[0] == "begin" and note.words[2] == str(fleet.process.pid) for note in rig.notes()) > enough
