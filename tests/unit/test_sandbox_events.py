"""The events that may happen to an issuance or a presentation, and what reads of it show."""

import pytest

from credhook.sandbox.events import EVENT_TYPES, EVENTS, delivery_body, obstacle, possible
from credhook.sandbox.resources import as_seen
from credhook.sandbox.tenant import Faults, FaultSwitch
from credhook.sandbox.wire import SandboxError

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


def test_an_obstacle_names_its_reason() -> None:
    assert obstacle(DATA, "verified", [DATA]) == f"{DATA} has been announced for it already"
    assert obstacle(OFFERED, "completed", [COMPLETED]) == f"{OFFERED} cannot follow the status completed"


def test_the_table_has_the_ten_events_and_every_issuance_event_has_its_credentials() -> None:
    assert len(EVENT_TYPES) == 10
    assert {len(rule.credentials) for rule in EVENTS.values() if rule.kind == "issuance"} == {2}
    assert EVENTS[REJECTED].status == "rejected"


def test_a_delivery_holds_the_reference_only() -> None:
    assert delivery_body(OFFERED, "iss_1") == (
        '{"eventType": "openid4vc.issuance.offered", "payload": {"openId4VcIssuanceId": "iss_1"}}'
    )
    assert delivery_body(DATA, "cm1") == (
        '{"eventType": "openid4vc.verification.data", "payload": {"openId4VcPresentationId": "cm1"}}'
    )


@pytest.mark.parametrize(
    ("faults", "before", "age_ms", "seen"),
    [
        (Faults(), "old", 0, "new"),
        (Faults(details_lag_ms=100), "old", 99, None),
        (Faults(details_lag_ms=100), "old", 100, "new"),
        (Faults(details_stale_ms=100), "old", 99, "old"),
        (Faults(details_stale_ms=100), "old", 100, "new"),
        (Faults(details_stale_ms=100), None, 99, None),
    ],
)
def test_details_may_lag_behind_their_event_or_be_stale(
    faults: Faults, before: str | None, age_ms: float, seen: str | None
) -> None:
    if seen is not None:
        assert as_seen("new", before, age_ms, faults) == seen
        return
    with pytest.raises(SandboxError) as refusal:
        as_seen("new", before, age_ms, faults)
    assert refusal.value.status == 404


async def test_a_rate_is_counted_per_second() -> None:
    faults = FaultSwitch(Faults(requests_per_second=2, retry_after=7))
    for now in (100.0, 100.5, 101.0, 101.9):
        await faults.disturb(now)
    with pytest.raises(SandboxError) as refusal:
        await faults.disturb(101.99)
    assert (refusal.value.status, refusal.value.headers) == (429, {"Retry-After": "7"})
    await faults.disturb(102.0)


def test_faults_are_switched_one_by_one_and_run_down() -> None:
    switch = FaultSwitch(Faults(server_errors=1))
    switch.change(Faults(duplicate=3))
    assert (switch.on.duplicate, switch.on.server_errors) == (3, 1)
    assert [switch.take("server_errors"), switch.take("server_errors")] == [True, False]
    switch.clear()
    assert switch.on == Faults()


@pytest.mark.parametrize(
    ("faults", "swaps"),
    [
        (Faults(), [False, False, False]),
        (Faults(envelopes="swapped"), [True, True, True]),
        (Faults(envelopes="alternating"), [True, False, True]),
    ],
)
def test_envelopes_are_swapped_always_or_at_every_other_answer(faults: Faults, swaps: list[bool]) -> None:
    switch = FaultSwitch(faults)
    assert [switch.swaps_envelope() for _ in range(3)] == swaps
