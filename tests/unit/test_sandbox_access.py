"""Who gets in: tokens, and what the guard says of browsers."""

import pytest

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.http.guard import objection
from credhook.sandbox.http.tokens import LIFETIME, Tokens


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_good_for_its_lifetime_and_no_longer() -> None:
    clock = Clock()
    tokens = Tokens(clock)
    token = tokens.issue()
    clock.now += LIFETIME - 1
    assert tokens.check(f"Bearer {token}") == token
    clock.now += 1
    with pytest.raises(Refusal, match="expired"):
        tokens.check(f"Bearer {token}")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer nonsense", "Basic c2FuZGJveDo=", "nonsense"])
def test_everything_else_is_no_token(header: str | None) -> None:
    with pytest.raises(Refusal) as refusal:
        Tokens(Clock()).check(header)
    assert refusal.value.status == 401


def test_a_revoked_token_is_unknown_and_another_is_not() -> None:
    tokens = Tokens(Clock())
    first, second = tokens.issue(), tokens.issue()
    tokens.revoke(first)
    with pytest.raises(Refusal):
        tokens.check(f"Bearer {first}")
    assert tokens.check(f"bearer {second}") == second


@pytest.mark.parametrize("host", ["127.0.0.1:8700", "localhost:8700", "[::1]:8700", "10.0.0.7:8700", "sandbox:8700"])
def test_a_host_that_a_page_cannot_take_is_let_in(host: str) -> None:
    assert objection(host, None, {"sandbox"}) is None
    assert objection(host, f"http://{host}", {"sandbox"}) is None


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:8700", "localhost.evil.example", "[::1", "sandbox"])
def test_a_name_that_a_page_may_have_pointed_here_is_refused(host: str) -> None:
    assert objection(host, None, ()) is not None


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "http://127.0.0.1:9999", "", "127.0.0.1:8700"])
def test_a_request_of_another_origin_is_refused(origin: str) -> None:
    assert objection("127.0.0.1:8700", origin, ()) is not None
