"""What is different, told without what it is."""

from typing import Any

import pytest

from credhook.testing.differences import differences


@pytest.mark.parametrize(("expected", "found", "said"), [
    ({"a": 1}, {"a": 1}, ""),
    ({"a": 1}, {"a": 2}, "a has another value"),
    ({"a": 1}, {"a": "Ada"}, "a is str instead of int"),
    ({"a": 1}, {"b": 1}, "a is missing; b should not be there"),
    ([1], [1, 1], "the whole has 2 entries (1 repeated) instead of 1 entry"),
    ([], [{"name": "Ada"}], "the whole has 1 entry instead of 0 entries"),
    ({"users": [{"name": "Ada"}]}, {"users": [{"name": "Grace"}]}, "users[0].name has another value"),
    ((("Ada", 1), ("Grace", 2)), (("Ada", 1), ("Grace", 3)), "[1][1] has another value"),
    ({"Ada"}, {"Grace"}, "the whole lacks 1 and has 1 that should not be there"),
    ("Ada", "Grace", "the whole has another value"),
    (list(range(9)), list(range(1, 10)), "; ".join(f"[{place}] has another value" for place in range(5)) +
     "; and 4 more"),
])  # fmt: skip
def test_a_difference_is_a_place_and_never_a_value(expected: Any, found: Any, said: str) -> None:
    assert differences(expected, found) == said
    assert "Ada" not in said
