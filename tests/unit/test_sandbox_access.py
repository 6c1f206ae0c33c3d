"""Access to the sandbox: tokens, and the guard against pages of other sites."""

import pytest

from credhook.sandbox.access import TOKEN_LIFETIME_SECONDS, TokenIssuer, objection
from credhook.sandbox.wire import SandboxError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_expires_after_its_lifetime() -> None:
    clock = Clock()
    tokens = TokenIssuer(clock)
    token = tokens.issue()
    clock.now += TOKEN_LIFETIME_SECONDS - 1
    assert tokens.check(f"Bearer {token}") == token
    clock.now += 1
    with pytest.raises(SandboxError, match="expired"):
        tokens.check(f"Bearer {token}")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer nonsense", "Basic c2FuZGJveDo=", "nonsense"])
def test_any_other_header_is_401(header: str | None) -> None:
    with pytest.raises(SandboxError) as refusal:
        TokenIssuer(Clock()).check(header)
    assert refusal.value.status == 401


def test_revoking_a_token_leaves_others_valid() -> None:
    tokens = TokenIssuer(Clock())
    first, second = tokens.issue(), tokens.issue()
    tokens.revoke(first)
    with pytest.raises(SandboxError):
        tokens.check(f"Bearer {first}")
    assert tokens.check(f"bearer {second}") == second


HERE = "127.0.0.1:8700"


@pytest.mark.parametrize(
    ("host", "origin", "refused"),
    [
        *((host, None, False) for host in (HERE, "localhost:8700", "[::1]:8700", "10.0.0.7:8700", "sandbox:8700")),
        *((host, f"http://{host}", False) for host in (HERE, "localhost:8700", "[::1]:8700", "sandbox:8700")),
        *((host, None, True) for host in ("", "evil.example", "evil.example:8700", "localhost.evil.example", "[::1")),
        *((HERE, origin, True) for origin in ("null", "http://evil.example", "http://127.0.0.1:9999", "", HERE)),
    ],
)
def test_only_known_names_and_the_same_origin_are_accepted(host: str, origin: str | None, refused: bool) -> None:
    assert bool(objection(host, origin, {"sandbox"})) == refused
