"""What a refused sender can do to the log, and what it is told."""

import json
from uuid import UUID

from structlog.testing import capture_logs

from credhook.logs import FloodGuard
from credhook.receiver.inbox import StoreUnavailable
from credhook.receiver.refusals import MAX_LOGGED, RefusalLog, answer
from credhook.receiver.signature import OutsideTolerance, Unauthenticated


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


def test_each_answer_has_an_error_id_of_its_own() -> None:
    bodies = [json.loads(bytes(answer(Unauthenticated("no signature matches", "")).body)) for _ in range(100)]
    ids = {body["errors"][0]["id"] for body in bodies}
    assert len(ids) == 100
    assert {UUID(each).version for each in ids} == {4}
