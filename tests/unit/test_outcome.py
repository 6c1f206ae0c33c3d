from worker.outcome import Outcome
from worker.retry import GiveUp, Retry


def test_nothing_ended_badly_is_nothing_to_do() -> None:
    assert Outcome.before({"a.f": "done"}) == Outcome()


def test_the_shortest_wait_decides_and_names_its_cause() -> None:
    outcome = (
        Outcome()
        .after("a.f", ValueError(), Retry(9))
        .after("a.g", KeyError(), Retry(3))
        .after("a.h", OSError(), Retry(5))
    )
    assert (outcome.again, outcome.error) == (3, "a.g: KeyError")


def test_what_was_given_up_is_remembered_while_others_come_back() -> None:
    reason = GiveUp("closed")
    outcome = Outcome.before({"a.e": "dead: ValueError"}).after("a.f", reason, reason).after("", OSError(), Retry(1))
    assert outcome == Outcome(again=1, error="OSError", gave_up=("a.e: ValueError", "a.f: closed"))
