"""What may happen to an issuance or a presentation, and what reads of it show."""

import pytest

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.resources.issuances import BATCH, CREDENTIALS
from credhook.sandbox.resources.resources import as_seen
from credhook.sandbox.tenant.events import EVENT_TYPES, EventType, concerns_issuance, named, notice
from credhook.sandbox.tenant.faults import Faults, FaultSwitch
from credhook.sandbox.tenant.lifecycle import STEPS, ImpossibleError, follow, possible

OFFERED: EventType = "openid4vc.issuance.offered"
COMPLETED: EventType = "openid4vc.issuance.completed"
PARTIAL: EventType = "openid4vc.issuance.partiallyIssued"
REQUESTED: EventType = "openid4vc.verification.requested"
VERIFIED: EventType = "openid4vc.verification.verified"
DATA: EventType = "openid4vc.verification.data"


@pytest.mark.parametrize(
    ("event_type", "status"),
    [
        (COMPLETED, "completed"),
        ("openid4vc.issuance.failed", "failed"),
        (PARTIAL, "partiallyIssued"),
        ("openid4vc.issuance.expired", "expired"),
    ],
)
def test_an_offer_ends_in_one_of_four_ways(event_type: EventType, status: str) -> None:
    assert follow(event_type, "offered", [OFFERED]) == status


@pytest.mark.parametrize(
    ("event_type", "status"),
    [
        (VERIFIED, "verified"),
        (DATA, "verified"),
        ("openid4vc.verification.failed", "rejected"),
        ("openid4vc.verification.expired", "expired"),
    ],
)
def test_a_request_ends_in_one_of_three_ways(event_type: EventType, status: str) -> None:
    assert follow(event_type, "requested", [REQUESTED]) == status


def test_what_was_issued_in_part_can_still_be_completed() -> None:
    assert follow(COMPLETED, "partiallyIssued", [OFFERED, PARTIAL]) == "completed"


@pytest.mark.parametrize(("first", "second"), [(VERIFIED, DATA), (DATA, VERIFIED)])
def test_verified_and_data_follow_each_other_in_either_order(first: EventType, second: EventType) -> None:
    assert follow(second, "verified", [REQUESTED, first]) == "verified"


def test_nothing_happens_twice() -> None:
    with pytest.raises(ImpossibleError, match="announced"):
        follow(DATA, "verified", [DATA])


@pytest.mark.parametrize("event_type", [OFFERED, REQUESTED])
@pytest.mark.parametrize("status", ["offered", "requested", "completed", "verified"])
def test_a_beginning_follows_nothing(event_type: EventType, status: str) -> None:
    with pytest.raises(ImpossibleError):
        follow(event_type, status, [])


@pytest.mark.parametrize("status", ["completed", "failed", "expired"])
def test_an_ended_issuance_stays_as_it_is(status: str) -> None:
    assert possible("issuance", status, []) == []


def test_what_is_possible_is_what_can_follow() -> None:
    assert set(possible("verification", "verified", [VERIFIED])) == {DATA}
    assert set(possible("issuance", "offered", [OFFERED])) == {
        each for each in EVENT_TYPES if concerns_issuance(each) and each != OFFERED
    }


def test_every_event_type_has_its_step_and_every_issuance_status_its_credentials() -> None:
    assert set(STEPS) == set(EVENT_TYPES)
    assert len(EVENT_TYPES) == 10
    statuses = {step.status for event_type, step in STEPS.items() if concerns_issuance(event_type)}
    assert {status: len(each) for status, each in CREDENTIALS.items()} == dict.fromkeys(statuses, BATCH)


@pytest.mark.parametrize("name", ["issuance.completed", "openid4vc.issuance.completed"])
def test_an_event_type_may_be_named_in_short(name: str) -> None:
    assert named(name) == COMPLETED


@pytest.mark.parametrize("name", ["", "completed", "issuance", "openid4vc.", "issuance.Completed"])
def test_no_other_name_means_an_event_type(name: str) -> None:
    assert named(name) is None


def test_a_notice_refers_to_its_resource_and_says_nothing_else() -> None:
    assert notice(OFFERED, "iss_1") == (
        '{"eventType": "openid4vc.issuance.offered", "payload": {"openId4VcIssuanceId": "iss_1"}}'
    )
    assert notice(DATA, "cm1") == (
        '{"eventType": "openid4vc.verification.data", "payload": {"openId4VcPresentationId": "cm1"}}'
    )


def test_details_lag_behind_their_event_and_then_catch_up() -> None:
    lagging = Faults(details_lag_ms=100)
    with pytest.raises(Refusal) as refusal:
        as_seen("new", "old", 99, lagging)
    assert refusal.value.status == 404
    assert as_seen("new", "old", 100, lagging) == "new"


def test_details_are_stale_and_then_catch_up() -> None:
    stale = Faults(details_stale_ms=100)
    assert as_seen("new", "old", 99, stale) == "old"
    assert as_seen("new", "old", 100, stale) == "new"
    with pytest.raises(Refusal):
        as_seen("new", None, 99, stale)


async def test_requests_beyond_the_rate_of_a_second_are_refused_and_those_of_the_next_are_not() -> None:
    faults = FaultSwitch(Faults(requests_per_second=2))
    for now in (100.0, 100.5, 101.0, 101.9):
        await faults.disturb(now)
    with pytest.raises(Refusal) as refusal:
        await faults.disturb(101.99)
    assert refusal.value.status == 429
    await faults.disturb(102.0)


def test_without_a_fault_details_are_there_at_once() -> None:
    assert as_seen("new", "old", 0, Faults()) == "new"
