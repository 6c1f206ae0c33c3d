"""An event that takes its worker with it, among others that only happen to be under way beside it."""

import pytest
from fleet_harness import FleetHarness

COMPLETED = "openid4vc.issuance.completed"

#: All are under way when the culprit ends the process; what the others do takes longer.
CULPRIT = """
@handlers.on("*")
async def handle(event, context):
    await asyncio.sleep(0.1)
    if event.webhook_id == "culprit":
        note("deadly")
        os._exit(9)
    await asyncio.sleep(0.2)
"""


@pytest.mark.soak  # Each death costs the five seconds that an event may be in transit.
def test_the_one_that_kills_is_found_and_the_others_are_done(rig: FleetHarness) -> None:
    rig.plugin(CULPRIT)
    innocents = [f"m{number}" for number in range(40)]
    rig.accept(*((one, COMPLETED, f"iss_{one}") for one in (*innocents[:20], "culprit", *innocents[20:])))
    with rig.worker(CREDHOOK_LEASE="1", CREDHOOK_CONCURRENCY="50") as worker:
        rig.settles(within=90)
        deaths = worker.text.count('"worker_died"')
    records = rig.records([*innocents, "culprit"])
    assert records.pop("culprit")["error"] == "WorkerDied"
    assert {record["state"] for record in records.values()} == {"done"}
    # Twice among others, and twice alone.
    assert deaths == len(rig.notes()) <= 4
