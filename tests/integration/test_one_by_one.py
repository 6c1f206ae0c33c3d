"""Workers that fork for each event: they keep to what the fleet knows of the platform as all do."""

import time

import pytest
from fleet_harness import Answer, Call, FleetHarness, well
from waiting import until

FORK = ("--isolation", "fork")
COMPLETED = "openid4vc.issuance.completed"

HANDLER = """
@handlers.on("*")
async def handled(event, context):
    note("handled", event.webhook_id)
"""


@pytest.fixture
def rig(rig: FleetHarness) -> FleetHarness:
    rig.plugin(HANDLER)
    return rig


def accept(rig: FleetHarness, count: int) -> list[str]:
    ids = [f"m{number}" for number in range(count)]
    rig.accept(*[(one, COMPLETED, f"iss_{one}") for one in ids])
    return ids


def test_an_event_in_a_process_of_its_own_waits_for_its_turn_in_the_fleets_rate(rig: FleetHarness) -> None:
    rate, count = 1, 6
    ids = accept(rig, count)
    earliest = time.time()
    with rig.worker("worker", *FORK, CREDHOOK_RATE=str(rate)):
        for one in ids:
            assert "attempts" not in rig.reaches(one, "done")
    assert len(rig.stub.calls) == count
    # A busy machine may make its calls later than it was let, and then one soon after the other; but never before.
    for number, call in enumerate(rig.stub.calls):
        assert number <= rate * (1 + call.at - earliest)


def test_an_event_in_a_process_of_its_own_may_be_the_one_that_tries_the_platform(rig: FleetHarness) -> None:
    def answer(call: Call) -> Answer:
        return Answer(429, retry_after="1") if call.total == 1 else well(call)

    rig.stub.answer = answer
    with rig.worker("worker", *FORK) as worker:
        accept(rig, 1)
        until(lambda: '"platform_paused"' in worker.text, what="the pause")
        until(lambda: time.time() > rig.stub.calls[0].at + 1.2, what="its end")
        rig.accept(("late", COMPLETED, "iss_late"))
        assert "attempts" not in rig.reaches("late", "done", within=60)
        until(lambda: all(f'"platform_{end}"' in worker.text for end in ("probed", "resumed")), what="its lines")
    assert [call.resource for call in rig.stub.calls[:2]] == ["iss_m0", "iss_late"]
