"""The events that may happen to an issuance or a presentation."""

import pytest

from credhook.sandbox.events import EVENT_TYPES, EVENTS, possible

OFFERED, COMPLETED = "openid4vc.issuance.offered", "openid4vc.issuance.completed"
FAILED, EXPIRED = "openid4vc.issuance.failed", "openid4vc.issuance.expired"
PARTIAL = "openid4vc.issuance.partiallyIssued"
REQUESTED, DATA = "openid4vc.verification.requested", "openid4vc.verification.data"
VERIFIED, REJECTED = "openid4vc.verification.verified", "openid4vc.verification.failed"
LATE = "openid4vc.verification.expired"


@pytest.mark.parametrize(
    ("kind", "status", "announced", "next_events"),
    [
        ("issuance", "offered", [OFFERED], {COMPLETED, FAILED, PARTIAL, EXPIRED}),
        ("issuance", "partiallyIssued", [OFFERED, PARTIAL], {COMPLETED, FAILED}),
        ("issuance", "completed", [COMPLETED], set()),
        ("issuance", "failed", [FAILED], set()),
        ("issuance", "expired", [EXPIRED], set()),
        ("verification", "requested", [REQUESTED], {VERIFIED, DATA, REJECTED, LATE}),
        ("verification", "verified", [REQUESTED, VERIFIED], {DATA}),
        ("verification", "verified", [REQUESTED, DATA], {VERIFIED}),
        ("verification", "verified", [VERIFIED, DATA], set()),
        ("verification", "rejected", [REJECTED], set()),
    ],
)
def test_each_status_has_its_next_events(kind: str, status: str, announced: list[str], next_events: set[str]) -> None:
    assert set(possible(kind, status, announced)) == next_events


def test_the_table_has_the_ten_events_and_every_issuance_event_has_its_credentials() -> None:
    assert len(EVENT_TYPES) == 10
    assert {len(rule.credentials) for rule in EVENTS.values() if rule.kind == "issuance"} == {2}
    assert EVENTS[REJECTED].status == "rejected"
