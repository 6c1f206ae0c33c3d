"""When the whole ledger is looked through, and when the sorted sets are pruned."""

import pytest

from credhook.worker.queue.rounds import DAY, MONTH, Rounds

FIRST = 20_000 * DAY


@pytest.mark.parametrize(
    ("rounds", "now", "due"),
    [
        (Rounds(), FIRST, True),
        (Rounds(first=FIRST), FIRST, True),
        (Rounds(FIRST, FIRST), FIRST + DAY - 1, False),
        (Rounds(FIRST, FIRST), FIRST + DAY, True),
        (Rounds(FIRST, FIRST + DAY), FIRST + 30 * DAY, False),
        (Rounds(FIRST, FIRST + DAY), FIRST + DAY + MONTH, True),
        (Rounds(FIRST, FIRST + DAY), FIRST, True),  # A clock was set back.
        (Rounds(None, FIRST), FIRST + DAY - 1, False),  # The version before has written it.
        (Rounds(None, FIRST), FIRST + DAY, True),
    ],
)
def test_a_round_is_due_after_an_upgrade_a_day_later_and_then_every_thirty_days(
    rounds: Rounds, now: int, *, due: bool
) -> None:
    assert rounds.whole_is_due(now) is due


def test_a_year_has_thirteen_rounds_more_than_the_first() -> None:
    rounds, ended = Rounds(), []
    for day in range(365):
        if rounds.whole_is_due(FIRST + day * DAY):
            rounds = rounds.after_whole(FIRST + day * DAY)
            ended.append(day)
    assert ended == [0, 1, *range(31, 365, 30)]


@pytest.mark.parametrize(
    ("before", "first"),
    [
        (Rounds(), FIRST + DAY),
        (
            Rounds(first=1, pruned=2),
            FIRST + DAY,
        ),  # Somebody wants it from the beginning, and has deleted the other key.
        (Rounds(None, FIRST), FIRST),
        (Rounds(FIRST, FIRST), FIRST),
        (Rounds(FIRST + 9 * DAY, FIRST), FIRST + DAY),
    ],
)
def test_what_is_known_after_a_round(before: Rounds, first: int) -> None:
    assert before.after_whole(FIRST + DAY) == (first, FIRST + DAY, before.pruned)


def test_the_sorted_sets_are_pruned_every_day() -> None:
    assert Rounds(FIRST, FIRST).prune_is_due(FIRST)
    pruned = Rounds(FIRST, FIRST, FIRST)
    assert [pruned.prune_is_due(now) for now in (FIRST - 1, FIRST, FIRST + DAY - 1, FIRST + DAY)] == [
        True, False, False, True,
    ]  # fmt: skip
