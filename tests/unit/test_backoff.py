"""Waits that grow: how they begin, grow and end, and how much of them is chance."""

import pytest

from credhook.backoff import Backoff, Waits


@pytest.mark.parametrize(
    ("longest", "growth", "waits"), [(10, 2, [5, 10, 10]), (5, 1, [5, 5]), (100, 3, [5, 15, 45, 100])]
)
def test_waits_grow_up_to_the_longest(longest: float, growth: float, waits: list[float]) -> None:
    backoff = Backoff(first=5.0, longest=longest, growth=growth)
    assert [backoff.wait(attempt) for attempt in range(1, len(waits) + 1)] == waits


@pytest.mark.parametrize("wrong", [
    {"first": 5, "longest": 1},
    {"first": float("nan")},
    {"first": -1},
    {"longest": float("inf")},
    {"growth": 0.9},
    {"growth": 1e6},
    {"jitter": 2},
    {"jitter": -0.1},
])  # fmt: skip
def test_waits_that_cannot_be_meant_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Backoff: "):
        Backoff(**{"first": 1, "longest": 2} | wrong)


@pytest.mark.parametrize("growth", [1.5, 2.0, 1_000.0])
def test_no_number_of_attempts_is_too_large(growth: float) -> None:
    assert Backoff(first=0.05, longest=14_400.0, growth=growth).wait(10**9) == 14_400.0
    assert Backoff(first=0, longest=0, growth=growth).wait(10**9) == 0


@pytest.mark.parametrize(
    ("attempt", "jitter", "chance", "wait"),
    [
        (3, 0.0, 0.0, 8.0),
        (3, 0.5, 0.0, 4.0),
        (3, 0.5, 0.5, 6.0),
        (3, 0.5, 1.0, 8.0),
        (3, 1.0, 0.0, 0.0),
        (50, 0.5, 0.0, 30.0),
    ],
)
def test_chance_decides_about_the_jitter_alone(attempt: int, jitter: float, chance: float, wait: float) -> None:
    """What has failed often together should not return together either."""
    assert Backoff(first=2.0, longest=60.0, jitter=jitter).wait(attempt, chance) == wait
    assert Backoff(first=2.0, longest=2.0, jitter=jitter).wait(attempt) == 2.0


def test_a_loop_begins_anew_after_a_success() -> None:
    waits = Waits(Backoff(first=0.1, longest=0.4), clock=iter((100.0, 107.0, 110.0, 113.0)).__next__)
    assert waits.reset() == 0.0
    assert [waits.next() for _ in range(4)] == [0.1, 0.2, 0.4, 0.4]
    assert [waits.reset(), waits.reset()] == [7.0, 0.0]
    assert [waits.next(), waits.next()] == [0.1, 0.2]
    assert waits.reset() == 3.0


def test_each_wait_of_a_loop_has_a_chance_of_its_own() -> None:
    chances = iter([0.0, 1.0, 0.5])
    waits = Waits(Backoff(first=1.0, longest=60.0, jitter=1.0), lambda: next(chances))
    assert [waits.next() for _ in range(3)] == [0.0, 2.0, 2.0]
