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
    assert fuzzer.forged == 0
    # It would prove nothing if hardly anything got that far.
    assert fuzzer.parsed > count / 10
    assert {202, 400, 401} <= fuzzer.statuses.keys()
    reached = f"parser reached {fuzzer.parsed} times, {fuzzer.forged} of them by a forgery"
    print(f"{count} deliveries: {dict(fuzzer.statuses)}; {reached}")  # noqa: T201  As above.


async def test_a_key_rotation_refuses_nothing() -> None:
    """Ten thousand deliveries while the sender goes from the old key to both to the new one."""
    from signing import OTHER_SECRET, SECRET, body, sign

    from credhook.receiver.signature import authenticate, parse_key, read_headers

    keys = [parse_key(SECRET), parse_key(OTHER_SECRET)]
    content, timestamp = body(), "1700000000"
    for number in range(10_000):
        secrets = (SECRET,) if number < 3_000 else (SECRET, OTHER_SECRET) if number < 7_000 else (OTHER_SECRET,)
        signatures = " ".join(sign(f"msg_{number}", timestamp, content, secret) for secret in secrets)
        claim = read_headers(
            [
                (b"webhook-id", b"msg_%d" % number),
                (b"webhook-timestamp", timestamp.encode()),
                (b"webhook-signature", signatures.encode()),
            ],
            signatures=True,
        )
        authenticate(claim, content, keys, now=1_700_000_000, tolerance=300)
