"""Waits that grow: how they begin, grow and end, and how much of them is chance."""

import pytest

from credhook.backoff import Backoff, Waits


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(first=0.5, longest=10.0)
    assert [backoff.wait(attempt) for attempt in range(1, 8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_they_may_grow_faster() -> None:
    backoff = Backoff(first=5.0, longest=100.0, growth=3.0)
    assert [backoff.wait(attempt) for attempt in (1, 2, 3, 4)] == [5.0, 15.0, 45.0, 100.0]


@pytest.mark.parametrize("wrong", [
    {"first": 5, "longest": 1},
    {"first": float("nan")},
    {"first": -1},
    {"longest": float("inf")},
    {"growth": 0},
    {"growth": 1e6},
    {"jitter": 2},
])  # fmt: skip
def test_waits_that_cannot_be_meant_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Backoff: "):
        Backoff(**{"first": 1, "longest": 2} | wrong)


@pytest.mark.parametrize("growth", [1.5, 2.0, 10.0])
def test_no_number_of_attempts_is_too_large(growth: float) -> None:
    assert Backoff(first=0.05, longest=14_400.0, growth=growth).wait(10**9) == 14_400.0


@pytest.mark.parametrize(
    ("jitter", "chance", "wait"),
    [
        (0.0, 0.0, 8.0),
        (0.0, 1.0, 8.0),
        (0.5, 0.0, 4.0),
        (0.5, 0.5, 6.0),
        (0.5, 1.0, 8.0),
        (1.0, 0.0, 0.0),
        (1.0, 1.0, 8.0),
    ],
)
def test_chance_decides_about_the_jitter_alone(jitter: float, chance: float, wait: float) -> None:
    assert Backoff(first=2.0, longest=60.0, jitter=jitter).wait(3, chance) == wait


def test_chance_shortens_the_longest_wait_too() -> None:
    """What has failed often together should not return together either."""
    assert Backoff(first=1.0, longest=30.0, jitter=0.5).wait(50, 0.0) == 15.0


def test_a_loop_begins_anew_after_a_success() -> None:
    waits = Waits(Backoff(first=0.1, longest=0.4))
    assert [waits.next() for _ in range(4)] == [0.1, 0.2, 0.4, 0.4]
    waits.reset()
    assert [waits.next(), waits.next()] == [0.1, 0.2]


def test_each_wait_of_a_loop_has_a_chance_of_its_own() -> None:
    chances = iter([0.0, 1.0, 0.5])
    waits = Waits(Backoff(first=1.0, longest=60.0, jitter=1.0), lambda: next(chances))
    assert [waits.next() for _ in range(3)] == [0.0, 2.0, 2.0]
