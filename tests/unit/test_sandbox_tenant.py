"""The sandbox's tokens, and the faults that are on."""

import pytest

from credhook.sandbox.tenant import TOKEN_LIFETIME_SECONDS, Faults, FaultSwitch, TokenIssuer
from credhook.sandbox.wire import SandboxError


def test_a_token_lasts_until_it_expires_or_is_revoked() -> None:
    now = [1000.0]
    tokens = TokenIssuer(lambda: now[0])
    first, second = tokens.issue(), tokens.issue()
    tokens.revoke(first)
    now[0] += TOKEN_LIFETIME_SECONDS - 1
    assert tokens.check(f"bearer {second}") == second
    now[0] += 1
    for header in (f"Bearer {first}", f"Bearer {second}", f"Basic {second}", "Bearer ", "nonsense", "", None):
        with pytest.raises(SandboxError) as refusal:
            tokens.check(header)
        assert refusal.value.status_code == 401


async def test_a_rate_is_counted_per_second() -> None:
    faults = FaultSwitch(Faults(requests_per_second=2, retry_after=7))
    for now in (100.0, 100.5, 101.0, 101.9):
        await faults.disturb(now)
    with pytest.raises(SandboxError) as refusal:
        await faults.disturb(101.99)
    assert (refusal.value.status_code, refusal.value.headers) == (429, {"Retry-After": "7"})
    await faults.disturb(102.0)


@pytest.mark.parametrize(
    ("faults", "swaps"),
    [
        (Faults(), [False, False, False]),
        (Faults(envelopes="swapped"), [True, True, True]),
        (Faults(envelopes="alternating"), [True, False, True]),
    ],
)
def test_envelopes_are_swapped_always_or_at_every_other_answer(faults: Faults, swaps: list[bool]) -> None:
    switch = FaultSwitch(faults)
    assert [switch.swaps_envelope() for _ in range(3)] == swaps
