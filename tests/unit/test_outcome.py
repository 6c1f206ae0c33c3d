from credhook.store import State
from credhook.worker.api.errors import Unavailable
from credhook.worker.attempt.attempt import Outcome
from credhook.worker.attempt.retry import DataGone, Defer, GiveUp, Retry
from credhook.worker.queue.claims import Settlement


def test_what_nobody_here_handles_is_neither_done_nor_an_attempt() -> None:
    assert Outcome(unhandled=True).settlement() == Settlement(State.UNHANDLED, "NoHandler", spend=False)


def test_the_shortest_wait_decides_and_names_its_cause() -> None:
    outcome = (
        Outcome()
        .after("a.f", ValueError(), Retry(9))
        .after("a.g", KeyError(), Retry(3))
        .after("a.h", OSError(), Retry(5))
    )
    assert (outcome.again, outcome.error) == (3, "a.g: KeyError")


def test_what_was_given_up_is_remembered_while_others_come_back() -> None:
    reason, before = GiveUp("closed"), Outcome().with_ended("a.e", "dead: ValueError").with_ended("a.d", "done")
    outcome = before.after("a.f", reason, reason).after("", OSError(), Retry(1))
    assert outcome == Outcome(again=1, error="OSError", gave_up=("a.e: ValueError", "a.f: closed"), spent=True)


def test_an_attempt_counts_unless_all_that_failed_waits_for_the_platform() -> None:
    held_up = Outcome().after("", Unavailable(""), Defer(20))
    assert held_up.settlement() == Settlement(State.WAITING, "Unavailable", wait=20, spend=False)
    assert held_up.after("a.f", ValueError(), Retry(30)).settlement().spend


def test_a_wait_of_less_than_a_second_is_kept() -> None:
    assert Outcome().after("a.f", ValueError(), Retry(0.4)).settlement().more("w")["wait"] == 400


def test_presented_data_that_is_gone_is_an_outcome_of_its_own() -> None:
    gone = DataGone(was_there=True)
    assert Outcome().after("", gone, GiveUp("DataGone")).settlement() == Settlement(State.DATA_GONE, "DataGone")


def test_an_attempt_counts_whichever_handler_is_held_up_after_a_failure() -> None:
    for wait in (1, 60):
        failed = Outcome().after("a.f", ValueError(), Retry(30))
        assert failed.after("a.g", Unavailable(""), Defer(wait)).settlement().spend


def test_presented_data_is_gone_whatever_else_was_given_up() -> None:
    gone, reason = DataGone(was_there=True), GiveUp("closed")
    before = Outcome().with_ended("a.f", "dead: closed").after("", gone, GiveUp("DataGone"))
    after = Outcome().after("a.g", gone, GiveUp("DataGone")).after("a.f", reason, reason)
    assert before.settlement().state is after.settlement().state is State.DATA_GONE
