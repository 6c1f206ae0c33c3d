"""How soon the events of a dead worker are under way again."""
# ruff: noqa: T201  The seconds are what somebody looks for who changes a lease.

import os
import signal
import time
from contextlib import ExitStack

import pytest

from support.process.serving import children
from support.waiting import until
from support.worker.fleet_harness import FleetHarness
from support.worker.harness import COMPLETED

HELD = """
@handlers.on("*")
async def held(event, context):
    note("begin", event.webhook_id, os.getpid())
    while not (here / "go").exists():
        await asyncio.sleep(0.05)
"""


@pytest.mark.parametrize(("whole", "promised"), [(False, 2.0), (True, 10.0)], ids=["one process", "with its host"])
def test_dead_workers_events_are_claimed_before_its_leases_lapse(
    rig: FleetHarness, whole: bool, promised: float
) -> None:
    """With the lease as shipped: one process dies, or with its supervisor, while another worker has nothing to do."""
    del rig.environment["CREDHOOK_LEASE"]
    rig.plugin(HELD)
    ids = {f"m{number}" for number in range(100)}

    def begun(*but: int) -> dict[str, float]:
        """When each began, in whatever process that is none of these."""
        return {note.words[1]: note.at for note in rig.notes() if int(note.words[2]) not in but}

    with rig.worker("first") as first, ExitStack() as stack:
        rig.started(first)
        (victim,) = children(first)
        rig.accept(*((one, COMPLETED, f"iss_{one}") for one in ids))
        until(lambda: begun().keys() == ids, what="100 in flight")
        second = stack.enter_context(rig.worker("second"))
        rig.started(second)
        until(lambda: rig.redis.zcard("credhook:credhook:heartbeats") == 2, what="both at the roll call")
        died = time.time()
        if whole:
            first.kill()
        else:
            os.kill(victim, signal.SIGKILL)
        until(lambda: begun(victim).keys() == ids, what="100 under way again")
        took = max(begun(victim).values()) - died
        (rig.folder / "go").touch()
        rig.settles()
    # The leases were not waited for, and nobody was blamed.
    assert {record.get("killed") for record in rig.records(ids).values()} == {None}
    told = rig.logs()
    assert '"worker_missed"' in told or not whole
    assert '"events_put_back"' not in told
    print(f"\nkill -9 with 100 events in flight: all under way again after {took:.1f} s ({promised:.0f} promised)")
