"""What a refused sender can do to the log, and the error ids that tell which receiver has answered."""

from uuid import UUID

import pytest
from structlog.testing import capture_logs

from credhook.logs import FloodGuard
from credhook.receiver.inbox import StoreUnavailable
from credhook.receiver.refusals import MAX_LOGGED, RefusalLog, error_id, has_made
from credhook.receiver.signature import OutsideTolerance, Unauthenticated

KEY, OTHER_KEY = 32 * "a", 32 * "b"


def test_each_refusal_is_logged_until_they_become_a_flood_and_all_are_counted() -> None:
    now = 0.0
    refusals = RefusalLog(lambda: now)
    with capture_logs() as logs:
        for _ in range(1_000):
            refusals.add(Unauthenticated("no signature matches", "check the keys"))
        refusals.add(StoreUnavailable("TimeoutError"))
        assert len(logs) == MAX_LOGGED + 1
        now += 60
        refusals.add(Unauthenticated("no signature matches", "check the keys"))
        refusals.add(OutsideTolerance("the timestamp is too old", ""))
    assert (refusals.unauthenticated, refusals.outside_tolerance, refusals.last_unauthenticated) == (1_002, 1, now)
    assert (logs[-2]["unlogged_before"], logs[-2]["hint"]) == (1_000 - MAX_LOGGED, "check the keys")


def test_a_kind_is_admitted_again_after_a_minute_and_kinds_are_counted_apart() -> None:
    now = 0.0
    guard = FloodGuard(1, lambda: now)
    assert [guard.admit("a"), guard.admit("a"), guard.admit("b")] == [{}, None, {}]
    now += 60
    assert [guard.admit("a"), guard.admit("a"), guard.admit("b")] == [{"unlogged_before": 1}, None, {}]


def test_error_ids_are_different_uuids_that_only_their_own_key_recognises() -> None:
    ids = {error_id(KEY) for _ in range(100)}
    assert len(ids) == 100
    assert {UUID(each).version for each in ids} == {4}
    assert all(has_made(KEY, each) for each in ids)
    assert not any(has_made(OTHER_KEY, each) for each in ids)


@pytest.mark.parametrize("text", ["", "no id", "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", "0" * 32])
def test_a_foreign_id_is_not_recognised(text: str) -> None:
    assert not has_made(KEY, text)
