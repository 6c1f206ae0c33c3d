"""What the receiver's log says of deliveries: many in a line, and at once what did not go as expected."""

import pytest
from structlog.testing import capture_logs
from waiting import until_async

from credhook.events import Event
from credhook.receiver.inbox.delivery_log import DeliveryLog
from credhook.receiver.inbox.script import Delivery, Outcome

EVENT = Event("openid4vc.issuance.completed", "iss_1")


def deliveries(*outcomes: Outcome) -> list[tuple[Delivery, Outcome]]:
    return [(Delivery(f"m{number}", EVENT), outcome) for number, outcome in enumerate(outcomes)]


def test_a_large_group_is_told_in_lines_that_collectors_of_logs_take() -> None:
    with capture_logs() as lines:
        DeliveryLog().add(deliveries(*[Outcome.ACCEPTED] * 120, Outcome.DUPLICATE))
    assert [line["event"] for line in lines] == ["events_accepted"] * 3 + ["events_duplicate"]
    assert [len(line["events"]) for line in lines] == [50, 50, 20, 1]
    told = [one["webhook_id"] for line in lines for one in line["events"]]
    assert told == [f"m{number}" for number in range(121)]


async def test_a_few_are_told_within_a_tenth_of_a_second_and_once() -> None:
    report = DeliveryLog()
    with capture_logs() as lines:
        report.add(deliveries(Outcome.ACCEPTED))
        report.add(deliveries(Outcome.ACCEPTED))
        assert lines == []
        await until_async(lambda: lines)
        report.tell()
    assert [len(line["events"]) for line in lines] == [2]


@pytest.mark.parametrize(
    ("outcome", "event"),
    [
        (Outcome.CONFLICT, "event_conflict"),
        (Outcome.QUARANTINED, "event_quarantined"),
        (Outcome.UNREADABLE, "event_unreadable"),
    ],
)
def test_what_did_not_go_as_expected_is_told_at_once(outcome: Outcome, event: str) -> None:
    with capture_logs() as lines:
        DeliveryLog().add(deliveries(outcome))
    assert [(line["event"], line["webhook_id"]) for line in lines] == [(event, "m0")]
