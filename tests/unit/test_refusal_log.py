"""How much of the log a stranger who is refused can fill."""

from structlog.testing import capture_logs

from credhook.receiver.refusal_log import MOST, PERIOD, RefusalLog


def test_each_refusal_is_a_line_until_they_become_a_flood() -> None:
    now = 0.0
    refusals = RefusalLog(lambda: now)
    with capture_logs() as logs:
        for _ in range(1_000):
            refusals.add(401, "no signature matches", hint="check the keys")
        refusals.add(503, "TimeoutError")
        assert len(logs) == MOST + 1
        assert [("unlogged" in one) for one in logs] == [False] * (MOST - 1) + [True, False]
        now += PERIOD
        refusals.add(401, "no signature matches", hint="check the keys")
        refusals.add(401, "no signature matches", hint="check the keys")
    assert (refusals.unauthenticated, refusals.outside_tolerance) == ((1_002, PERIOD), 0)
    refusals.add(401, "the timestamp is too old", outside_tolerance=True)
    assert (refusals.unauthenticated, refusals.outside_tolerance) == ((1_003, PERIOD), 1)
    first, second = logs[-2:]
    assert first["unlogged_before"] == str(1_000 - MOST)
    assert "unlogged_before" not in second
    assert first["hint"] == "check the keys"
