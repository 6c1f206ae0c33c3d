"""Hostile input gets no further than a refusal: the fuzzer, short in the suite and long in the soak."""

import random

import pytest
from fuzz import fuzz


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(4_000, id="short"),
        pytest.param(1_000_000, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3_600)]),
    ],
)
async def test_no_forgery_reaches_the_parser_and_nothing_breaks(count: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"\nseed {seed}")  # noqa: T201  Repeats a failure.
    fuzzer = await fuzz(count, seed)
    # It would prove nothing if hardly anything got that far.
    assert fuzzer.parsed > count / 10
    assert {202, 400, 401} <= fuzzer.statuses.keys()
    print(f"{count} deliveries: {dict(fuzzer.statuses)}; parser reached {fuzzer.parsed} times, never by a forgery")  # noqa: T201  As above.
