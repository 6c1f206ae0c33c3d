"""What a refused sender can do to the log, and what it is told."""

import json
from uuid import UUID

from structlog.testing import capture_logs

from credhook.logs import FloodGuard
from credhook.receiver.app import MAX_LOGGED, RefusalLog
from credhook.receiver.inbox import StoreUnavailable
from credhook.receiver.signature import OutsideTolerance, Unauthenticated


def test_each_refusal_is_logged_until_they_become_a_flood_and_all_are_counted() -> None:
    refusals = RefusalLog()
    with capture_logs() as logs:
        bodies = [refusals.refuse(Unauthenticated("no signature matches", "check the keys")).body for _ in range(1_000)]
        refusals.refuse(StoreUnavailable("TimeoutError"))
        refusals.refuse(OutsideTolerance("the timestamp is too old", ""))
    assert len(logs) == MAX_LOGGED + 2
    assert logs[0]["hint"] == "check the keys"
    assert (refusals.unauthenticated, refusals.outside_tolerance) == (1_001, 1)
    ids = {json.loads(bytes(body))["errors"][0]["id"] for body in bodies}
    assert len(ids) == 1_000
    assert {UUID(each).version for each in ids} == {4}


def test_a_kind_is_admitted_again_after_a_minute_and_kinds_are_counted_apart() -> None:
    now = 0.0
    guard = FloodGuard(1, lambda: now)
    assert [guard.admit("a"), guard.admit("a"), guard.admit("b")] == [{}, None, {}]
    now += 60
    assert [guard.admit("a"), guard.admit("a"), guard.admit("b")] == [{"unlogged_before": 1}, None, {}]
